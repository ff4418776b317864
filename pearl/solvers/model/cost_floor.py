"""Costs that no plan of a search space undercuts: cheap, and for every size."""

from __future__ import annotations

import math

from pearl.graph.period import howard
from pearl.planning.timing import delay_s
from pearl.solvers.model.bounds import NOTHING, CostBound
from pearl.solvers.model.dag_instance import fastest, shared_s
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import watched

Quick = list[dict[str, tuple[float, float]]]
"""Unit → device → least latency and least occupancy of its modes there, in seconds."""


def period_floor(space: SearchSpace) -> CostBound:
    """No plan has a shorter period: cycles in the fastest modes, the loads of lanes, shared evenly
    and of each class alone, and the messages that must cross a link."""
    quick = fastest(space)
    return max(
        NOTHING,
        CostBound(_cycles_s(space, quick), "cycles"),
        CostBound(max(_work_s(space, quick), shared_s(space, quick)), "work"),
        CostBound(_links_s(space, quick), "links"),
    )


def period_floor_s(space: SearchSpace) -> float:
    return period_floor(space).cost


def cost_floor(space: SearchSpace, objective: str) -> CostBound:
    """No plan costs less: the period floor, for energy with the frugal modes and what is always on
    for that long. Seconds or joules of an iteration."""
    floor = period_floor(space)
    if objective == "throughput":
        return floor
    always_w = math.fsum(space.costs.platform.idle_w().values())
    dynamic_j = math.fsum(
        space.expansion.firings(u) * min(m.estimate.energy_j for m in modes)
        for u, modes in enumerate(space.options)
    )
    return CostBound(dynamic_j + always_w * floor.cost, "modes")


def _cycles_s(space: SearchSpace, quick: Quick) -> float:
    """The largest cycle ratio of least latencies, with the message of an arc where no device may
    hold both of its ends."""
    x, platform = space.expansion, space.costs.platform
    least = [min(latency for latency, _ in row.values()) for row in quick]
    apart: dict[tuple[int, int, float], float] = {}
    arcs = []
    for s, d, m, e in watched(x.arcs):
        (i, _), (j, _) = x.nodes[s], x.nodes[d]
        seconds = least[i]
        if not quick[i].keys() & quick[j].keys():
            edge = x.graph.edges[e]
            size = edge.bytes * (x.graph.repetition[edge.src] if len(x.units[i]) > 1 else 1)
            key = i, j, size
            if key not in apart:
                apart[key] = min(
                    latency + math.fsum(delay_s(link, size) for link in platform.route(a, b))
                    for a, (latency, _) in quick[i].items()
                    for b in quick[j]
                )
            seconds = apart[key]
        arcs.append((s, d, seconds, m))
    return howard(len(x.nodes), arcs)[0]


def _work_s(space: SearchSpace, quick: Quick) -> float:
    """The least work over the lanes that may do it, of all units and of those that have no devices
    but the ones of some unit; a unit is on one lane, a class on one device."""
    x, lanes = space.expansion, space.lanes
    firings = [x.firings(u) for u in range(len(quick))]
    largest = 0.0
    for members in space.classes:
        common = set.intersection(*(set(quick[u]) for u in members))
        alone = [
            max(
                math.fsum(firings[u] * quick[u][d][1] for u in members)
                / min(lanes[d], len(members)),
                *(firings[u] * quick[u][d][1] for u in members),
            )
            for d in common
        ]
        largest = max(largest, min(alone, default=0.0))
    least = [n * min(o for _, o in row.values()) for n, row in zip(firings, quick, strict=True)]
    by_devices: dict[frozenset[str], float] = {}
    for row, seconds in zip(quick, least, strict=True):
        devices = frozenset(row)
        by_devices[devices] = by_devices.get(devices, 0.0) + seconds
    everywhere = frozenset(d for devices in by_devices for d in devices)
    for devices in {*by_devices, everywhere}:
        inside = math.fsum(s for some, s in by_devices.items() if some <= devices)
        largest = max(largest, inside / sum(lanes[d] for d in devices))
    return largest


def _links_s(space: SearchSpace, quick: Quick) -> float:
    """The largest load of a link that pays for itself, by the messages of tasks to others on no
    device of theirs, where every way between them takes that link."""
    x, platform = space.expansion, space.costs.platform
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    ways: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}
    busy: dict[str, dict[str, float]] = {k.name: {} for k in platform.links if k.paid_by == "link"}
    named = {k.name: k for k in platform.links}
    for edge in watched(x.graph.edges):
        i, j = unit[edge.src], unit[edge.dst]
        if quick[i].keys() & quick[j].keys():
            continue
        key = frozenset(quick[i]), frozenset(quick[j])
        if key not in ways:
            ways[key] = frozenset.intersection(
                *(frozenset(k.name for k in platform.route(a, b)) for a in key[0] for b in key[1])
            )
        single = len(x.units[i]) == 1
        messages = x.graph.repetition[edge.src] if single else 1
        size = edge.bytes if single else edge.bytes * x.graph.repetition[edge.src]
        for name in ways[key] & busy.keys():
            link = named[name]
            seconds = messages * (link.per_message_s + size / link.bytes_per_s)
            busy[name][edge.src] = max(seconds, busy[name].get(edge.src, 0.0))
    return max((math.fsum(row.values()) for row in busy.values()), default=0.0)
