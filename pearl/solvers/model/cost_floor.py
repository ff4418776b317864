"""Cheap lower bounds on the cost of every plan of a search space, for problems of any size."""

from __future__ import annotations

import math
from contextlib import suppress

from pearl.graph.cycle_ratio import howard
from pearl.planning.timing import delay_s
from pearl.solvers.model.bounds import NOTHING, CostBound
from pearl.solvers.model.dag_instance import fastest, shared_s
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import OutOfTimeError, watched

Quick = list[dict[str, tuple[float, float]]]
"""Unit → device → least latency and least occupancy of its modes there, in seconds."""


def period_floor(space: SearchSpace, *, programs: bool = True) -> CostBound:
    """Return a lower bound on every period.

    The bound is the largest of: cycles in the fastest modes; the loads of lanes, shared evenly and
    for each class alone; the messages that must cross a link.

    programs: with the linear program of the work.
    """
    quick = fastest(space)
    work_s = _work_s(space, quick)
    if programs:
        with suppress(OutOfTimeError):
            work_s = max(work_s, shared_s(space, quick))
    return max(
        NOTHING,
        CostBound(_cycles_s(space, quick), "cycles"),
        CostBound(work_s, "work"),
        CostBound(_links_s(space, quick), "links"),
    )


def period_floor_s(space: SearchSpace) -> float:
    return period_floor(space).cost


def cost_floor(space: SearchSpace, objective: str, *, programs: bool = True) -> CostBound:
    """Return a lower bound on every cost, in seconds or joules of an iteration.

    Energy takes the most frugal modes, and for the period floor the devices that are always on.
    """
    floor = period_floor(space, programs=programs)
    if objective == "throughput":
        return floor
    always_w = math.fsum(space.costs.platform.idle_w().values())
    dynamic_j = math.fsum(
        space.expansion.firings(u) * min(m.estimate.energy_j for m in modes)
        for u, modes in enumerate(space.options)
    )
    return CostBound(dynamic_j + always_w * floor.cost, "modes")


def _cycles_s(space: SearchSpace, quick: Quick) -> float:
    """Return the largest cycle ratio with the least latencies. An arc between units without a
    common device has the least delay of its message."""
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
    """Return the least work per lane.

    The bound is taken for all units, for the units whose devices are among those of some unit, and
    for each class; a unit is on one lane, a class on one device.
    """
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
    """Return the largest load of a link whose messages occupy the link alone (`paid_by: link`).

    It counts messages between tasks without a common device, if every route takes the link.
    """
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
