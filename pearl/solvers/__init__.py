"""`solve`: the best plan for a graph and its costs, by one of the methods in `SOLVERS`."""

from __future__ import annotations

import time
from collections.abc import Callable

from pearl.assembly import Proof, assemble
from pearl.costs import CostTable
from pearl.errors import SpecError
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.plan_check import check_plan
from pearl.plans import Plan
from pearl.solvers import exhaustive, milp
from pearl.solvers.choices import OBJECTIVES
from pearl.solvers.outcome import Outcome

Method = Callable[[TaskGraph, CostTable, str, Limits, float, int], Outcome]
"""(graph, costs, objective, limits, deadline in `time.monotonic()` seconds, seed) → outcome."""

SOLVERS: dict[str, Method] = {"milp": milp.solve, "exhaustive": exhaustive.solve}
"""Method name → function. Both know the objectives throughput and power_efficiency."""

DEFAULT = "milp"


def solve(
    graph: TaskGraph,
    costs: CostTable,
    *,
    objective: str = "throughput",
    method: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> Plan:
    """The plan with the most env steps per second (`throughput`) or per joule (`power_efficiency`).

    Its value, bound, gap and status say what is proven. Raises SpecError for an unknown objective,
    method or name, and InfeasibleError naming the limit that cannot be met.
    """
    problems = []
    if objective not in OBJECTIVES:
        problems.append(f"objective {objective!r} is not known; allowed are {list(OBJECTIVES)}")
    if method is not None and method not in SOLVERS:
        problems.append(f"method {method!r} is not known; allowed are {list(SOLVERS)}")
    if not time_limit_s > 0:
        problems.append(f"time_limit_s is {time_limit_s}; it must be above 0")
    if problems:
        raise SpecError(*problems)
    began = time.monotonic()
    name = method or DEFAULT
    outcome = SOLVERS[name](graph, costs, objective, limits, began + time_limit_s, seed)
    best = outcome.best
    proof = Proof(
        objective=objective,
        method=name,
        seed=seed,
        solve_s=time.monotonic() - began,
        bound=outcome.bound,
        period_bound_s=outcome.bound if objective == "throughput" else best.ordered.bound_s,
        late=outcome.late,
    )
    return assemble(best.assignment, best.ordered.orders, proof, power_w=limits.power_w)


__all__ = ["SOLVERS", "check_plan", "solve"]
