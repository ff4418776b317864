"""Capacities of channels: the least with which a plan keeps its period."""

from __future__ import annotations

import math

from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import start_times, token_free_cycle
from pearl.graph.task_graph import Edge
from pearl.planning.timing import TimedGraph, channel_arcs

WORK = 6000
"""Steps that raise capacities on critical cycles, times nodes of the timed graph (assumed: a step
takes 0.1 ms per node)."""

_SAME = 1e-9


def least_capacities(
    timed: TimedGraph, rings: list[Arc], period: float, *, whole: bool
) -> tuple[dict[int, int], list[Arc]]:
    """Return the least capacities found of the data channels (edge number → tokens) with which the
    period stays the same, and their arcs.

    The search starts at m + p + c − gcd(p, c) and raises capacities on critical cycles only. If it
    takes too many steps (WORK), the result is the need of the earliest periodic schedule.

    whole: start at m plus all tokens of an iteration, so that no firing waits for space.
    """
    x = timed.assignment.expansion
    capacity: dict[int, int] = {}
    for number, e in enumerate(x.graph.edges):
        if e.is_channel:
            capacity[number] = e.least_capacity
            if whole:
                produced = e.tokens + x.graph.repetition[e.src] * e.production
                capacity[number] = max(produced, e.least_capacity)
    rounds = WORK // len(timed.names)
    rows: dict[int, list[tuple[int, int, int]]] = {}
    while True:
        if rounds == 0:
            capacity = _ample_capacities(timed, rings, period, capacity)
            rows = {}
        rounds -= 1
        held: dict[tuple[int, int, int], set[int]] = {}
        for number, size in capacity.items():
            if number not in rows:
                rows[number] = channel_arcs(x, x.graph.edges[number], size)
            for row in rows[number]:
                held.setdefault(row, set()).add(number)
        arcs = [(s, d, timed.latency_s[s], m) for s, d, m in held]
        everything = [*rings, *arcs]
        cycle = token_free_cycle(len(timed.names), everything)
        if not cycle:
            ratio, cycle = howard(len(timed.names), everything)
            if ratio <= period * (1 + _SAME):
                return capacity, arcs
        steps = set(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        for (s, d, _), numbers in held.items():
            if (s, d) in steps:
                for number in numbers:
                    e = x.graph.edges[number]
                    capacity[number] += math.gcd(e.production, e.consumption)
                    rows.pop(number, None)


def _ample_capacities(
    timed: TimedGraph, rings: list[Arc], period: float, least: dict[int, int]
) -> dict[int, int]:
    """Capacities, from `least` up, with which the earliest periodic schedule never waits for
    room."""
    x = timed.assignment.expansion
    start = start_times(len(timed.names), rings, period)
    small = _SAME * period
    capacities = {}
    for number, size in least.items():
        edge = x.graph.edges[number]
        step = math.gcd(edge.production, edge.consumption)
        whole = x.graph.repetition[edge.src] * edge.production // step  # adds a token to each arc

        def turns(more: int, edge: Edge = edge, size: int = size, step: int = step) -> int:
            late_s = [
                start[s] + timed.latency_s[s] - m * period - start[d] - small
                for s, d, m in channel_arcs(x, edge, size + more * step)
            ]
            return max(0, math.ceil(max(late_s, default=0.0) / period))

        high = turns(0) * whole
        low = high - whole  # more room never makes a firing wait
        while high > 0 and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if turns(middle) else (low, middle)
        capacities[number] = size + high * step
    return capacities
