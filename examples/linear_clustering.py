"""Linear clustering: longest paths become clusters, clusters become lanes.

Kim and Browne 1988, "A general approach to mapping of parallel computations upon multiprocessor
architectures"; as used by Das and Rauchwerger 2023, "Automatic Task Parallelization of Dataflow
Graphs in ML/DL models", arXiv 2308.11192. The longest path of the remaining firings, including
transfers, becomes a cluster, until no firing remains. Clusters whose times do not overlap are
merged, which cannot lengthen the iteration. The plan is the better of this one and of all firings
in one lane. The method works on the token-free arcs of one iteration. For throughput, the plan is
evaluated like any other plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pearl.planning.problem import Problem
from pearl.solvers.makespan.list_outcome import listed_outcome
from pearl.solvers.makespan.list_schedule import Place, Schedule
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.time_limit import look, watched

OBJECTIVES = ("throughput", "makespan")
"""The objectives of the method, which looks at time alone."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return the schedule of linear clusters, with a bound from a relaxation. `seed` has no effect.

    Raises:
        InfeasibleError: no plan is within the limits, or this plan is not.
    """
    return listed_outcome(schedule, problem, search)


def schedule(it: DagInstance) -> Candidate | None:
    """Return the schedule of one iteration of a search space; None if a firing finds no place."""
    clusters = find_clusters(it)
    apart, (_, order) = merge_clusters(it, clusters), find_spans(it, clusters)
    together = [list(range(len(it.space.options)))]
    found = [
        candidate
        for groups in (apart, together)
        for most_lanes in (math.inf, 1)
        if (made := _place_groups(it, groups, order, most_lanes))
        and (candidate := made.to_candidate())
    ]
    return min(found, key=lambda c: c.cost, default=None)


def find_clusters(it: DagInstance) -> list[list[int]]:
    """Return the units of the longest path, then those of the longest path of the remaining
    firings, and so on.

    Every unit is in one cluster.
    """
    seconds, delays = _average_seconds(it), _average_delays(it)
    free = [True] * len(it.space.options)
    clusters = []
    while any(free):
        way = [0.0] * len(it.order)
        following = [-1] * len(it.order)
        longest = -1
        for v in watched(reversed(it.order)):
            if not free[it.unit[v]]:
                continue
            for (s, _, _), delay in zip(it.after[v], delays[v], strict=True):
                if free[it.unit[s]] and way[s] + delay > way[v]:
                    way[v], following[v] = way[s] + delay, s
            way[v] += seconds[it.unit[v]]
            if longest < 0 or way[v] > way[longest]:
                longest = v
        cluster = []
        while longest >= 0:
            u = it.unit[longest]
            if free[u]:
                free[u] = False
                cluster.append(u)
            longest = following[longest]
        clusters.append(cluster)
    return clusters


Span = tuple[float, float]
"""First start and last end, in seconds."""


def find_spans(
    it: DagInstance, groups: list[list[int]], order: Sequence[int] | None = None
) -> tuple[list[Span], list[int]]:
    """Return the span of each group on a lane of its own, and all firings by their start.

    Seconds are means over modes, and only messages between groups take time. order: the order of
    firings in their lanes, after their predecessors; by default the order of the instance.
    """
    seconds, delays = _average_seconds(it), _average_delays(it)
    group_of = {u: g for g, group in enumerate(groups) for u in group}
    spans = [(math.inf, 0.0)] * len(groups)
    start, free = [0.0] * len(it.order), [0.0] * len(groups)
    for v in watched(it.order if order is None else order):
        u, g = it.unit[v], group_of[it.unit[v]]
        start[v] = max(start[v], free[g])
        end = free[g] = start[v] + seconds[u]
        spans[g] = min(spans[g][0], start[v]), max(spans[g][1], end)
        for (s, _, _), delay in zip(it.after[v], delays[v], strict=True):
            start[s] = max(start[s], end + (delay if group_of[it.unit[s]] != g else 0.0))
    return spans, sorted(it.order, key=lambda v: (start[v], it.place[v]))


def merge_clusters(it: DagInstance, clusters: list[list[int]]) -> list[list[int]]:
    """Merge clusters that do not overlap in time into groups, the earliest first.

    If lanes run firings by their start before merging, they end no later than before.
    """
    spans, _ = find_spans(it, clusters)
    groups: list[list[int]] = []
    ends: list[float] = []
    for c in sorted(range(len(clusters)), key=lambda c: spans[c]):
        begin, end = spans[c]
        free = [g for g, other in enumerate(ends) if other <= begin]
        if free:
            g = max(free, key=lambda g: ends[g])
            groups[g] += clusters[c]
            ends[g] = end
        else:
            groups.append(list(clusters[c]))
            ends.append(end)
    return groups


def _average_seconds(it: DagInstance) -> list[float]:
    """Return the mean latency of the modes of each unit."""
    return [math.fsum(m.estimate.latency_s for m in o) / len(o) for o in it.space.options]


def _average_delays(it: DagInstance) -> list[list[float]]:
    """Return for each firing the mean seconds of each message that it sends."""
    return [
        [it.mean_delay_s(it.unit[v], it.unit[s], size) for s, size, _ in it.after[v]]
        for v in range(len(it.order))
    ]


def _place_groups(
    it: DagInstance, groups: list[list[int]], order: Sequence[int], most_lanes: float
) -> Schedule | None:
    """Place each group in the lane whose work then ends first. A unit that this lane cannot run
    goes where it ends first, and so does a unit that its states bind to a device before its group
    has a lane: the unit would bind the whole group."""
    made = Schedule(it, most_lanes)
    group_of = {u: g for g, group in enumerate(groups) for u in group}
    work = [_sum_seconds(it, group) for group in groups]
    lane_of: dict[int, tuple[str, int]] = {}
    loads: dict[tuple[str, int], float] = {}
    for v in order:
        look()
        u = it.unit[v]
        g = group_of[u]
        places: dict[tuple[str, int], tuple[float, Place]] = {}
        for place in made.places(v):
            lane = made.mode(u, place[0]).device, place[1]
            choice = made.at(v, place)[1], place
            places[lane] = min(places.get(lane, choice), choice)
        if not places:
            return None
        bound = made.where[made.group[u]] is not None
        if g not in lane_of and not bound:
            lane = min(
                places,
                key=lambda k: (loads.get(k, 0.0) + work[g].get(k[0], math.inf), places[k]),
            )
            lane_of[g] = lane
            loads[lane] = loads.get(lane, 0.0) + work[g].get(lane[0], 0.0)
        own = places.get(lane_of[g]) if g in lane_of else None
        made.put(v, (own or min(places.values()))[1])
    return made


def _sum_seconds(it: DagInstance, group: list[int]) -> dict[str, float]:
    """Return the seconds of all firings of a group on each device that can run all of its units."""
    total: dict[str, float] = {}
    for k, u in enumerate(group):
        quickest: dict[str, float] = {}
        for m in it.space.options[u]:
            seconds = m.estimate.occupancy_s * it.space.expansion.firings(u)
            quickest[m.device] = min(seconds, quickest.get(m.device, math.inf))
        total = (
            quickest if k == 0 else {d: s + quickest[d] for d, s in total.items() if d in quickest}
        )
    return total
