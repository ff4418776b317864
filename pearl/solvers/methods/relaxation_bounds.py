"""Bounds from relaxations, for methods without a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from pearl.planning.problem import Problem
from pearl.solvers.model.bounds import NOTHING, CostBound
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.dag_instance import build_instance, least_s, makespan_spaces
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.time_limit import OutOfTimeError


def open_spaces(problem: Problem) -> list[SearchSpace]:
    """Return the search spaces of an objective; SpecError for limits that it does not support."""
    of = makespan_spaces if problem.objective == "makespan" else search_spaces
    return of(problem)


def to_plan(found: Candidate | None, problem: Problem) -> Candidate | None:
    """Return a schedule's assignment and orders as a plan for an objective; None if it breaks a
    limit."""
    if found is None or problem.objective == "makespan":
        return found
    cost, paced = cost_of(problem, found.assignment, found.ordered.period_s)
    return replace(found, period_s=paced, cost=cost) if cost < math.inf else None


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
