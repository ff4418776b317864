"""Every method of `METHODS` passes the contract, and so do those of the examples and the oracle."""

from __future__ import annotations

import pytest

from pearl.solvers import METHODS
from pearl.solvers.makespan import cpsat
from pearl.testing import SolverContract


@pytest.mark.skipif(not cpsat.installed(), reason="needs the extra cpsat")
class WithCpsat(SolverContract):
    pass


BY_PATH = ("examples.linear_clustering", "examples.lshs", "examples.peft")
BY_PATH += ("pearl.testing.exhaustive",)

for name in dict.fromkeys((*METHODS, *BY_PATH)):
    title = "Test" + "".join(map(str.capitalize, name.replace(".", "_").split("_")))
    contract = WithCpsat if name == "cpsat" else SolverContract
    globals()[title] = type(title, (contract,), {"method": name})
