"""Choice among plans of the same cost: least slack, then fewest lanes, then least power.

More lanes never make an optimum worse, so a plan may use lanes that it does not need. Two lanes of
a device are merged, beginning with the least loaded lanes, if the cost stays the same. Then the
method searches for the plan of least energy among plans of this speed and number of lanes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import split_of
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import SearchSpace, cost_of, space_of
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.period.slack_minimisation import (
    EFFORT,
    fewest_of_all,
    fewest_tokens,
    taken_slack,
)
from pearl.time_limit import OutOfTimeError

MERGED = 24
"""Largest number of pairs of lanes for which orders are searched, and of searched nodes of one pair
(assumed)."""
NODES = 200

FEW = 24
"""Largest number of firings per iteration for which the method minimises watts (assumed)."""

SLOWER = 1e-7
"""Share by which a plan of least energy may be slower, so that no tolerance excludes the present
plan; a proof allows ten times as much."""


def break_ties(
    found: Candidate, problem: Problem, search: Search, run: Solve, *, exact: bool
) -> Candidate:
    """Return a plan of the same cost with fewer resources, as far as the time limit allows.

    exact: `run` is an exact method, which also searches other assignments.
    """
    with suppress(OutOfTimeError):
        found = fewest_tokens(found, problem.limits)
        if exact:
            found = fewest_of_all(found, problem, search, run)
        found = fewest_lanes(found, problem)
        if exact:
            found = fewest_watts(found, problem, search, run)
    return found


def fewest_lanes(found: Candidate, problem: Problem) -> Candidate:
    """Merge lanes of the plan as long as the cost stays the same."""
    tries, again = 0, True
    space: SearchSpace | None = None
    x, devices = found.assignment.expansion, problem.costs.platform.devices
    limits = problem.limits
    if limits.apart or limits.rules or any(d.unit_memory_bytes < math.inf for d in devices):
        space = space_of(x, split_problem(problem, split_of(x.graph)), every_mode=True)
    while again:
        again = False
        for merged in _merged(found):
            if space and space.violates_coupling(merged):
                continue
            tries += 1
            if tries > MERGED:
                return found
            timed = build_timed_graph(merged)
            below_s = found.period_s * (1 + SAME)
            ordered = best_orders(timed, below_s=below_s, nodes=NODES, effort=EFFORT)
            cost, paced = cost_of(problem, merged, ordered.period_s)
            if cost <= found.cost * (1 + SAME):
                bound = replace(ordered, bound_s=min(found.ordered.bound_s, ordered.period_s))
                found, again = Candidate(merged, bound, paced, cost), True
                break
    return found


def fewest_watts(found: Candidate, problem: Problem, search: Search, run: Solve) -> Candidate:
    """Return a plan of the same speed with less power, or the given plan.

    The result has no more lanes and slack than the given plan. Only plans for throughput with
    several lanes and without a limit on power are searched.
    """
    limits, lanes = problem.limits, len(_lanes(found.assignment))
    firings = sum(problem.graph.repetition.values())
    one = lanes == 1 or found.period_s == 0
    if problem.objective != "throughput" or limits.power_w or one or firings > FEW:
        return found
    most = min(limits.period_s or found.period_s, found.period_s) * (1 + SLOWER)
    frugal = replace(limits.without_slack(), max_lanes=lanes, period_s=most)
    graph = problem.graph.with_slack(taken_slack(found, problem.graph))
    changed = replace(problem, graph=graph, limits=frugal, objective="power_efficiency")
    try:
        trial = run(changed, replace(search, start=None)).best
    except InfeasibleError:
        return found
    joules = found.assignment.energy_j(found.period_s)
    return replace(trial, cost=trial.period_s) if trial.cost < joules * (1 - SAME) else found


def _lanes(a: Assignment) -> dict[tuple[str, int], list[int]]:
    """Return the units of each lane, by device and number."""
    lanes: dict[tuple[str, int], list[int]] = {}
    for u, mode in enumerate(a.modes):
        lanes.setdefault((mode.device, a.lanes[u]), []).append(u)
    return lanes


def _merged(found: Candidate) -> Iterator[Assignment]:
    """Yield the plan with two lanes of a device merged, least loaded lanes first. Lanes with a
    total load above the period are not merged."""
    a, loads = found.assignment, build_timed_graph(found.assignment).loads_s
    lanes = sorted(_lanes(a), key=lambda lane: loads[f"{lane[0]}.{lane[1]}"])
    pairs = [
        (sum(loads[f"{device}.{n}"] for device, n in pair), pair)
        for pair in itertools.combinations(lanes, 2)
        if pair[0][0] == pair[1][0]
    ]
    for load, ((device, one), (_, other)) in sorted(pairs):
        if load > found.period_s * (1 + SAME):
            return
        low, high = min(one, other), max(one, other)

        def number(u: int, low: int = low, high: int = high, device: str = device) -> int:
            n = a.lanes[u]
            if a.modes[u].device != device or n < high:
                return n
            return low if n == high else n - 1

        yield replace(a, lanes=tuple(number(u) for u in range(len(a.modes))))
