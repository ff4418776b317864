"""Combinatorial Benders cuts from tasks whose placement makes every lane order too slow.

If the best orders of an assignment are too slow, a deletion filter leaves out one task after the
other until each of the remaining tasks is necessary for the conflict. One row then cuts off every
assignment with the same placement of the remaining tasks (Codato and Fischetti 2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pearl.planning.costs import CostTable, Mode
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.orders.lane_sequencing import no_order_below
from pearl_devices import Device, Link, Platform

FIRINGS = 100
"""Largest number of firings of a graph for which tasks are left out (assumed; a trial takes some
milliseconds for twenty firings)."""

NODES = 60
"""Largest number of searched nodes of one trial."""

_ELSEWHERE = "(elsewhere)"

Blamed = dict[int, tuple[float, float]]
"""Unit → the least latency and occupancy with which its placement causes the conflict."""


def conflict_units(
    space: SearchSpace, a: Assignment, worth_s: Callable[[Collection[int]], float]
) -> Blamed | None:
    """Return units whose placement excludes orders below a period, however the others are run.

    The result is None if the search does not decide this.

    worth_s: set of units with fixed placement → the period from which a plan is useless.
    Modes count by their times alone, as the quickest mode of the device if that is enough.
    """
    if len(a.expansion.nodes) > FIRINGS or any(s < 0 for s in a.costs.pair_extra_s.values()):
        return None
    costs = CostTable(_with_elsewhere(a.costs.platform), ())
    apart = [_quickest(options, a.modes[u], None) for u, options in enumerate(space.options)]
    best = [
        _quickest(options, a.modes[u], a.modes[u].device) for u, options in enumerate(space.options)
    ]

    def too_slow(modes: dict[int, Mode]) -> bool:
        chosen = [modes.get(u, mode) for u, mode in enumerate(apart)]
        lanes = [a.lanes[u] if u in modes else u for u in range(len(chosen))]
        relaxed = Assignment(a.expansion, costs, tuple(chosen), tuple(lanes))
        return no_order_below(build_timed_graph(relaxed), worth_s(modes), NODES)

    blamed = dict(enumerate(best))
    if not too_slow(blamed):
        blamed = dict(enumerate(a.modes))
        if not too_slow(blamed):
            return None
        for u in range(len(best)):
            trial = {**blamed, u: best[u]}
            if best[u] != blamed[u] and too_slow(trial):
                blamed = trial
    lane = [a.lane(u) for u in range(len(a.modes))]
    alone_first = sorted(blamed, key=lambda u: (lane.count(lane[u]), apart[u].estimate.latency_s))
    for u in alone_first:
        trial = {w: m for w, m in blamed.items() if w != u}
        if _may_leave(a, u, trial) and too_slow(trial):
            blamed = trial
    return {u: (m.estimate.latency_s, m.estimate.occupancy_s) for u, m in blamed.items()}


def _quickest(options: Sequence[Mode], chosen: Mode, device: str | None) -> Mode:
    """Return a mode that is as quick as every option. device: of the options there, else of all."""
    some = [m.estimate for m in options if device in (None, m.device)]
    occupancy = min(e.occupancy_s for e in some)
    latency = min(e.latency_s for e in some)
    estimate = replace(
        chosen.estimate, latency_s=latency, occupancy_s=occupancy, low_s=latency, high_s=latency
    )
    return replace(chosen, device=device or _ELSEWHERE, estimate=estimate)


def _with_elsewhere(platform: Platform) -> Platform:
    """Return the platform with a further device to which messages are free.

    Copies paid by lanes become free: the lane that pays depends on the places of all consumers.
    """
    links = [
        replace(k, paid_by="nobody" if k.paid_by == "lane" else k.paid_by) for k in platform.links
    ]
    free = [Link(d.name, _ELSEWHERE, 0.0, 1e30, paid_by="nobody") for d in platform.devices]
    return Platform(
        platform.name,
        (*platform.devices, Device(_ELSEWHERE, "null")),
        (*links, *free),
        platform.host,
    )


def _may_leave(a: Assignment, unit: int, kept: Collection[int]) -> bool:
    """Return whether leaving a unit out delays no message. With two hops, the second hop starts
    when the smallest message that continues has arrived."""
    edges = a.expansion.graph.edges
    size: dict[str, float] = {}
    for e in edges:
        if a.unit_of[e.dst] == unit:
            size[e.src] = min(a.payload(e)[0], size.get(e.src, math.inf))
    return not any(
        a.unit_of[e.dst] in kept and a.payload(e)[0] > size[e.src] and len(a.route(e)) > 1
        for e in edges
        if e.src in size
    )


def cut_period(
    space: SearchSpace, a: Assignment, objective: str, cost: float
) -> Callable[[Collection[int]], float]:
    """Return the function for `conflict_units`: units with fixed placement → the period from which
    every such plan costs at least `cost`, in seconds or joules of an iteration."""
    if objective == "throughput":
        return lambda _: cost
    platform = a.costs.platform
    x = space.expansion

    def joules(u: int, device: str | None) -> float:
        some = [m for m in space.options[u] if device in (None, m.device)]
        return x.firings(u) * min(m.estimate.energy_j for m in some)

    joules_anywhere = [joules(u, None) for u in range(len(a.modes))]
    joules_here = [joules(u, m.device) for u, m in enumerate(a.modes)]

    def period_s(kept: Collection[int]) -> float:
        used = {a.modes[u].device for u in kept}
        idle_w = math.fsum(platform.idle_w(used).values())
        dynamic = math.fsum(
            joules_here[u] if u in kept else joules_anywhere[u] for u in range(len(joules_here))
        )
        return (cost - dynamic) / idle_w if idle_w > 0 else math.inf

    return period_s
