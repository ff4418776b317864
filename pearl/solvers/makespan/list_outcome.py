"""Plans from list schedules, with a bound from a relaxation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from pearl.planning.problem import Problem
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.makespan.list_schedule import Schedule, build_schedule
from pearl.solvers.methods.relaxation_bounds import bound, open_spaces, to_plan
from pearl.solvers.model.dag_instance import DagInstance, build_instance
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.model.search_space import without_numbers
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError


def best_of(make: Callable[[float], Schedule | None]) -> Candidate | None:
    """Return a finished schedule; if a firing finds no place, try again with one lane per
    device."""
    for most_lanes in (math.inf, 1):
        made = make(most_lanes)
        found = made.to_candidate() if made else None
        if found:
            return found
    return None


def listed_outcome(
    schedule: Callable[[DagInstance], Candidate | None], problem: Problem, search: Search
) -> Outcome:
    """Return a list scheduler's best plan over all search spaces, with a bound from cycles and
    work."""
    deadline = search.deadline
    spaces = open_spaces(problem)
    best: Candidate | None = None
    stuck = []
    timed_out = False
    for number, space in enumerate(spaces):
        if number and time.monotonic() > deadline:
            timed_out = True
            break
        try:
            it = build_instance(space)
            candidate = to_plan(schedule(it), problem)
        except OutOfTimeError:
            if best is None:
                raise
            timed_out = True
            break
        if candidate is None:
            stuck.append(it)
        elif best is None or candidate.cost < best.cost:
            best = candidate
    for it in [] if best else stuck:
        candidate = to_plan(any_feasible_schedule(it, problem, deadline), problem)
        if candidate and (best is None or candidate.cost < best.cost):
            best = candidate
    if best is None:
        raise no_plan_error(problem, search)
    least = bound(spaces, problem, best, deadline)
    return Outcome(best, least.cost, timed_out, least.source)


def any_feasible_schedule(it: DagInstance, problem: Problem, deadline: float) -> Candidate | None:
    """Return a schedule on any assignment that satisfies all rules, found by the period form."""
    free = replace(without_numbers(problem), objective="throughput")
    seconds = max(1.0, deadline - time.monotonic())
    _, a, _ = PeriodForm(it.space, free, None).run(math.inf, seconds)
    if a is None:
        return None
    places = [(it.space.options[u].index(m), a.lanes[u]) for u, m in enumerate(a.modes)]
    return build_schedule(it, [float(k) for k in it.place], places).to_candidate()
