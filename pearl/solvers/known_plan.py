"""A known plan as the start of a search.

If the problem allows the plan, the search begins from it and never returns a worse plan, however
short the time limit is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pearl.errors import InfeasibleError, SpecError
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Orders
from pearl.solvers.model.dag_instance import ends_s, start_times_s
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.orders.lane_sequencing import OrderResult
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.outcome_check import fault_of_candidate
from pearl.time_limit import OutOfTimeError, extended


def translate_plan(plan: Plan, problem: Problem) -> Candidate | None:
    """Return the plan's assignment and orders in a problem, or None.

    The result is None if the problem lacks one of the plan's modes, has other edges, or forbids the
    plan. For makespan, which covers one iteration, it is also None if the plan has more slack than
    the graph, or if a lane runs ahead into the next iteration.
    """
    single = problem.objective == "makespan"
    try:
        timed, orders, _ = plan_orders(plan, problem)
    except (SpecError, InfeasibleError):
        return None
    period_s = ring_period(timed, orders)
    if single and (_runs_ahead(orders) or period_s == math.inf):
        return None
    if single:
        problem = replace(problem, limits=problem.limits.without_slack())
        cost, paced_s = ends_s(timed, start_times_s(timed, orders)), period_s
    else:
        cost, paced_s = cost_of(problem, timed.assignment, period_s)
    candidate = Candidate(timed.assignment, OrderResult(orders, period_s, 0.0), paced_s, cost)
    return None if fault_of_candidate(candidate, problem) else candidate


def _runs_ahead(orders: Orders) -> bool:
    """Return whether a lane begins a firing of the next iteration before the end of this one."""
    return any(len({ahead for _, ahead in entries}) > 1 for entries in orders.values())


def from_start(run: Solve, problem: Problem, search: Search) -> Outcome:
    """Run a method; return the start of the search if the method found no plan or a worse one.

    Raises:
        InfeasibleError, OutOfTimeError: as the method, if the search has no start.
    """
    start = search.start
    try:
        outcome = run(problem, search)
    except (InfeasibleError, OutOfTimeError) as error:
        if start is None or (isinstance(error, InfeasibleError) and error.conflict):
            raise
        return Outcome(start, 0.0, True, "")
    if start is None or not isinstance(outcome, Outcome) or not isinstance(outcome.best, Candidate):
        return outcome
    if start.cost >= outcome.best.cost * (1 - SAME):
        return outcome
    return replace(outcome, best=start, bound=min(outcome.bound, start.cost))


def or_spare(
    run: Solve,
    spare: Callable[[], Candidate | None],
    whole: Problem,
    problem: Problem,
    search: Search,
) -> Outcome:
    """Run a method; for the whole problem, return the spare plan if the method found none in time.

    Raises:
        InfeasibleError: the method proved that there is no plan.
        OutOfTimeError: the method found no plan in time, and there is no spare plan.
    """
    try:
        return run(problem, search)
    except (InfeasibleError, OutOfTimeError) as error:
        if problem is not whole or (isinstance(error, InfeasibleError) and error.conflict):
            raise
        with extended(math.inf):
            plan = spare()
        if plan is None:
            raise
        return Outcome(plan, 0.0, True, "")
