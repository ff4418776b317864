"""Bounds, and plans from list schedules, for methods without a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pearl.planning.problem import Problem
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.model.bounds import NOTHING, CostBound
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.dag_instance import DagInstance, build_instance, least_s, makespan_spaces
from pearl.solvers.model.list_schedule import Schedule, build_schedule
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces, without_numbers
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError


def open_spaces(problem: Problem) -> list[SearchSpace]:
    """Return the search spaces of an objective; SpecError for limits that it does not support."""
    of = makespan_spaces if problem.objective == "makespan" else search_spaces
    return of(problem)


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


def to_plan(found: Candidate | None, problem: Problem) -> Candidate | None:
    """Return a schedule's assignment and orders as a plan for an objective; None if it breaks a
    limit."""
    if found is None or problem.objective == "makespan":
        return found
    cost, paced = cost_of(problem, found.assignment, found.ordered.period_s)
    return replace(found, period_s=paced, cost=cost) if cost < math.inf else None


def any_feasible_schedule(it: DagInstance, problem: Problem, deadline: float) -> Candidate | None:
    """Return a schedule on any assignment that satisfies all rules, found by the period form."""
    free = replace(without_numbers(problem), objective="throughput")
    seconds = max(1.0, deadline - time.monotonic())
    _, a, _ = PeriodForm(it.space, free, None).run(math.inf, seconds)
    if a is None:
        return None
    places = [(it.space.options[u].index(m), a.lanes[u]) for u, m in enumerate(a.modes)]
    return build_schedule(it, [float(k) for k in it.place], places).to_candidate()


def bound(
    spaces: Sequence[SearchSpace], problem: Problem, best: Candidate, deadline: float
) -> CostBound:
    """Return a lower bound on the cost of every plan, seconds or joules, from cycles and work.

    The bound is at most the cost of `best`, and 0 if time runs out.
    """
    try:
        return _least(spaces, problem, best, deadline)
    except OutOfTimeError:
        return NOTHING


def _least(
    spaces: Sequence[SearchSpace], problem: Problem, best: Candidate, deadline: float
) -> CostBound:
    floors = [CostBound(best.cost, "search")]
    for space in spaces:
        if problem.objective == "makespan":
            floors.append(CostBound(least_s(build_instance(space), deadline), "path"))
        else:
            programs = time.monotonic() < deadline
            floors.append(cost_floor(space, problem.objective, programs=programs))
    return min(floors)


def cheap_bound(problem: Problem, best: Candidate) -> CostBound:
    """Return `bound` without linear programs.

    Raises:
        OutOfTimeError: the time limit passed.
    """
    return _least(open_spaces(problem), problem, best, -math.inf)


def work_bound(problem: Problem) -> CostBound:
    """Return a lower bound on every cost from firings and times alone, without an expansion.

    Work counts the quickest way of every task, evenly on all lanes; a fused call counts in equal
    parts for its members. A call is never shorter than the quickest one of its task.
    """
    graph, costs, limits = problem.graph, problem.costs, problem.limits
    less: dict[str, float] = {}  # pair and lane terms may make a firing shorter
    for ((task, _), _), seconds in costs.pair_extra_s.items():
        less[task] = less.get(task, 0.0) + min(0.0, seconds)
    for task, _, seconds, _ in costs.lane_terms:
        less[task] = less.get(task, 0.0) + min(0.0, seconds)
    used = {t for m in costs.modes for t in m.tasks}
    share_s, whole_s, joules = (dict.fromkeys(used, math.inf) for _ in range(3))
    for m in costs.modes:
        firings = 1 if m.fused else graph.repetition[m.tasks[0]]
        more = sum(less.get(t, 0.0) * graph.repetition[t] for t in m.tasks)
        e = m.estimate
        seconds = max(0.0, firings * min(e.occupancy_s, e.latency_s) + more)
        for t in m.tasks:
            share_s[t] = min(share_s[t], seconds / len(m.tasks))
            whole_s[t] = min(whole_s[t], seconds)
            joules[t] = min(joules[t], firings * e.energy_j / len(m.tasks))
    devices = costs.platform.devices
    lanes = min(sum(min(d.max_lanes, d.width) for d in devices), limits.max_lanes or math.inf)
    least_s = max(math.fsum(share_s.values()) / lanes, *whole_s.values())
    if problem.objective == "power_efficiency":
        always_w = math.fsum(costs.platform.idle_w().values())
        return CostBound(math.fsum(joules.values()) + always_w * least_s, "modes")
    return CostBound(least_s, "work")
