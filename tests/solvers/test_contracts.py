"""Every method of `METHODS` passes the contract, and so does the one of the examples."""

from __future__ import annotations

import pytest

from pearl.planning.costs import CostTable
from pearl.solvers import METHODS
from pearl.solvers.methods import cpsat, local_search
from pearl.testing import SolverContract
from pearl.testing.graphs import loop, mode
from pearl.testing.solver_contract import two_devices


class ListContract(SolverContract):
    def test_power_efficiency_takes_the_frugal_mode(self) -> None:
        """List schedulers look at time alone: the fast mode, and what it costs."""
        modes = (mode("x", "a", 2.0, energy=1.0), mode("x", "b", 1.0, energy=5.0))
        plan = self.solve(loop("x"), CostTable(two_devices(), modes), objective="power_efficiency")
        assert plan.task("x").device == "b"
        assert plan.energy_per_iteration_j == pytest.approx(5.0)
        assert plan.bound_value == pytest.approx(1.0)
        assert plan.status == "feasible"


class FewMoves(SolverContract):
    @pytest.fixture(autouse=True)
    def few_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A few tasks need no more."""
        monkeypatch.setattr(local_search, "MOVES", 300)


@pytest.mark.skipif(not cpsat.installed(), reason="needs the extra cpsat")
class WithCpsat(SolverContract):
    pass


STRICTER = {
    "heft": ListContract,
    "peft": ListContract,
    "lshs": ListContract,
    "examples.linear_clustering": ListContract,
    "local_search": FewMoves,
    "cpsat": WithCpsat,
    "pearl.testing.exhaustive": SolverContract,
}
"""Methods whose contract has more to it; every other one is held to `SolverContract`."""

for name in dict.fromkeys((*METHODS, *STRICTER)):
    title = "Test" + "".join(map(str.capitalize, name.replace(".", "_").split("_")))
    globals()[title] = type(title, (STRICTER.get(name, SolverContract),), {"method": name})
