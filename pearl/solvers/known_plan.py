"""A plan of a problem like the one to be solved: where it keeps the limits there too, nothing worse
than it is the answer, however little time there was."""

from __future__ import annotations

from collections.abc import Callable

from pearl.errors import InfeasibleError, SpecError
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan
from pearl.solvers.model.lane_sequencing import Ordered
from pearl.solvers.model.list_orders import ring_period
from pearl.solvers.model.request import Request
from pearl.solvers.model.result import SAME, Found, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.outcome_check import fault_of
from pearl.time_limit import OutOfTimeError


def found_in(plan: Plan, request: Request) -> Found | None:
    """The plan's assignment and orders in the problem of a request; None where that problem lacks
    one of its modes, has other edges, or forbids it. Not for makespan."""
    if request.objective == "makespan":
        return None
    try:
        timed, orders, _ = plan_orders(plan, request.graph, request.costs)
    except (SpecError, InfeasibleError):
        return None
    period_s = ring_period(timed, orders)
    cost, paced_s = cost_of(request.objective, timed.assignment, period_s, request.limits)
    found = Found(timed.assignment, Ordered(orders, period_s, 0.0), paced_s, cost)
    return None if fault_of(Outcome(found, 0.0, late=True), request) else found


def from_known(run: Callable[[Request], Outcome], request: Request, known: Found | None) -> Outcome:
    """The outcome of a method, with a known plan in the place of a worse one, or of none in time.

    Raises:
        InfeasibleError, OutOfTimeError: as the method, where no plan is known.
    """
    try:
        outcome = run(request)
    except (InfeasibleError, OutOfTimeError) as error:
        if known is None or (isinstance(error, InfeasibleError) and error.conflict):
            raise
        return Outcome(known, 0.0, late=True)
    if known is None or not isinstance(outcome, Outcome):
        return outcome
    if known.cost >= outcome.best.cost * (1 - SAME):
        return outcome
    return Outcome(known, min(outcome.bound, known.cost), outcome.late)
