"""Bounds from relaxations, and plans from list schedules, for methods that prove nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pearl.graph.limits import Limits
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.dag_instance import DagInstance, iteration, least_s, makespan_spaces
from pearl.solvers.model.list_schedule import Schedule, build
from pearl.solvers.model.request import Request
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError

TERMS = 200_000
"""Transfer variables of a linear relaxation at most (assumed: a few seconds); above, the bound is
that of loads and cycles alone."""


def open_spaces(request: Request) -> list[SearchSpace]:
    """The search spaces of an objective; SpecError for limits that it does not know."""
    of = makespan_spaces if request.objective == "makespan" else search_spaces
    return of(request.graph, request.costs, request.limits)


def best_of(make: Callable[[float], Schedule | None]) -> Candidate | None:
    """A finished schedule, with one lane a device where the first try got stuck."""
    for most_lanes in (math.inf, 1):
        made = make(most_lanes)
        found = made.found() if made else None
        if found:
            return found
    return None


def listed_outcome(
    schedule: Callable[[DagInstance], Candidate | None], request: Request
) -> Outcome:
    """A list scheduler's best plan over all search spaces, with the bound of the relaxation."""
    objective, limits, deadline = request.objective, request.limits, request.deadline
    spaces = open_spaces(request)
    best: Candidate | None = None
    stuck = []
    late = False
    for number, space in enumerate(spaces):
        if number and time.monotonic() > deadline:
            late = True
            break
        try:
            it = iteration(space)
            found = to_plan(schedule(it), objective, limits)
        except OutOfTimeError:
            if best is None:
                raise
            late = True
            break
        if found is None:
            stuck.append(it)
        elif best is None or found.cost < best.cost:
            best = found
    for it in [] if best else stuck:
        found = to_plan(anywhere(it, limits, deadline), objective, limits)
        if found and (best is None or found.cost < best.cost):
            best = found
    if best is None:
        raise no_plan_error(request)
    return Outcome(best, bound(spaces, objective, limits, best, deadline), late)


def to_plan(found: Candidate | None, objective: str, limits: Limits) -> Candidate | None:
    """A schedule's assignment and orders as a plan for an objective; None if it breaks a limit."""
    if found is None or objective == "makespan":
        return found
    cost, paced = cost_of(objective, found.assignment, found.ordered.period_s, limits)
    return replace(found, period_s=paced, cost=cost) if cost < math.inf else None


def anywhere(it: DagInstance, limits: Limits, deadline: float) -> Candidate | None:
    """A schedule on any assignment that keeps all rules, found by the period form."""
    free = replace(limits, period_s=None, min_throughput_per_s=None, power_w=None)
    seconds = max(1.0, deadline - time.monotonic())
    _, a, _ = PeriodForm(it.space, "throughput", free, None).run(math.inf, seconds)
    if a is None:
        return None
    places = [(it.space.options[u].index(m), a.lanes[u]) for u, m in enumerate(a.modes)]
    return build(it, [float(k) for k in it.place], places).found()


def bound(
    spaces: Sequence[SearchSpace], objective: str, limits: Limits, best: Candidate, deadline: float
) -> float:
    """Lower bound of the cost of every plan, seconds or joules, from relaxations only.

    At most the cost of `best`; 0 where time runs out.
    """
    try:
        return _least(spaces, objective, limits, best, deadline)
    except OutOfTimeError:
        return 0.0


def _least(
    spaces: Sequence[SearchSpace], objective: str, limits: Limits, best: Candidate, deadline: float
) -> float:
    least = best.cost
    for space in spaces:
        if least <= 0:
            break
        if objective == "makespan":
            floor = least_s(iteration(space), deadline)
        else:
            floor = cost_floor(space, objective)
            x = space.expansion
            devices = len(space.costs.platform.devices)
            if (
                floor < least * (1 - SAME)
                and len(x.graph.edges) * devices**2 <= TERMS
                and time.monotonic() < deadline
            ):
                seconds = max(0.1, deadline - time.monotonic())
                model = PeriodForm(space, objective, limits, best)
                floor = max(floor, model.relaxation(seconds))
        least = min(least, floor)
    return max(0.0, least)
