"""Capacities of channels: the least with which a plan keeps its period, or those that fit into
memory.

A channel with room for c tokens keeps c / production · bytes on the device of its consumer, and on
each unit of the consumer's lane.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import start_times, token_free_cycle
from pearl.graph.task_graph import Edge
from pearl.planning.timing import Assignment, TimedGraph, channel_arcs

WORK = 6000
"""Steps that raise capacities on critical cycles, times nodes of the timed graph (assumed: a step
takes 0.1 ms per node)."""

MOST_STEPS = 200
"""Least number of steps that give room to channels in scarce memory (assumed)."""

_SAME = 1e-9


@dataclass(frozen=True)
class Channels:
    """The capacities of a plan's channels.

    capacity: number of the edge → tokens. held: the arcs of full channels, in seconds of latency of
    their source.
    """

    capacity: Mapping[int, int]
    held: tuple[Arc, ...]


@dataclass(frozen=True)
class ChannelRoom:
    """Memory for channels.

    device_bytes: device → bytes that states and scratch leave. unit_bytes: device and number of a
    lane → bytes that modes leave on each of its units.
    """

    device_bytes: Mapping[str, float]
    unit_bytes: Mapping[tuple[str, int], float]

    def excess_bytes(self, a: Assignment, capacity: Mapping[int, int]) -> dict[int, float]:
        """Return, for each channel into a place without room, the bytes that are too many there;
        empty if all channels fit."""
        device: dict[str, float] = {}
        unit: dict[tuple[str, int], float] = {}
        edges = a.expansion.graph.edges
        for number, tokens in capacity.items():
            place, size = a.place_of(edges[number].dst), channel_bytes(a, edges[number], tokens)
            device[place[0]] = device.get(place[0], 0.0) + size
            unit[place] = unit.get(place, 0.0) + size
        excess = {}
        for number in capacity:
            place = a.place_of(edges[number].dst)
            over = max(
                device[place[0]] - self.device_bytes[place[0]] * (1 + _SAME),
                unit[place] - self.unit_bytes[place] * (1 + _SAME),
            )
            if over > 0:
                excess[number] = over
        return excess


def channel_bytes(a: Assignment, edge: Edge, capacity: int) -> float:
    """Return the bytes that a channel keeps; 0 within a fused call."""
    inside = a.unit_of[edge.src] == a.unit_of[edge.dst]
    return 0.0 if inside else capacity / edge.production * edge.bytes


def capacities_within(
    timed: TimedGraph, rings: list[Arc], period: float, room: ChannelRoom
) -> tuple[Channels, float] | None:
    """Return capacities that fit into memory, and the least period found with them; None if none
    were found.

    A shorter period needs more room in some channel of the critical cycle. So a search that begins
    with the least capacities, and tries every channel of the cycle, finds the best ones if it ends.
    It goes on from the shortest period; `period` or its last step ends it.
    """
    a = timed.assignment
    edges = a.expansion.graph.edges
    numbers = [n for n, e in enumerate(edges) if e.is_channel]
    least = {n: edges[n].least_capacity for n in numbers}
    if room.excess_bytes(a, least):
        return None
    best: tuple[Channels, float] | None = None
    known = {tuple(least.values())}
    queue = [(math.inf, 0, tuple(least.values()))]
    for _ in range(max(MOST_STEPS, WORK // len(timed.names))):
        if not queue:
            break
        _, depth, tokens = heapq.heappop(queue)
        capacity = dict(zip(numbers, tokens, strict=True))
        held = _rows(timed, capacity)
        arcs = [(s, d, timed.latency_s[s], m) for s, d, m in held]
        everything = [*rings, *arcs]
        ratio, cycle = math.inf, token_free_cycle(len(timed.names), everything)
        if not cycle:
            ratio, cycle = howard(len(timed.names), everything)
            if best is None or ratio < best[1] * (1 - _SAME):
                best = Channels(capacity, tuple(arcs)), ratio
            if ratio <= period * (1 + _SAME):
                break
        steps = set(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        for number in sorted({n for (s, d, _), of in held.items() if (s, d) in steps for n in of}):
            more = capacity | {number: capacity[number] + _step(edges[number])}
            key = tuple(more.values())
            if key not in known and not room.excess_bytes(a, more):
                known.add(key)
                heapq.heappush(queue, (ratio, depth - 1, key))
    return best


def cut_capacities(
    timed: TimedGraph, whole: Mapping[int, int], room: ChannelRoom
) -> Channels | None:
    """Return capacities of at most `whole` that fit into memory, the channels of most bytes cut
    first; None if the least do not fit."""
    a = timed.assignment
    edges, capacity = a.expansion.graph.edges, dict(whole)

    def spare(number: int) -> int:
        return (capacity[number] - edges[number].least_capacity) // _step(edges[number])

    while excess := room.excess_bytes(a, capacity):
        sizes = {n: channel_bytes(a, edges[n], _step(edges[n])) for n in excess}
        most = max(excess, key=lambda n: (spare(n) * sizes[n], -n))
        if spare(most) * sizes[most] <= 0:
            return None
        fewer = min(max(1, spare(most) // 8), math.ceil(excess[most] / sizes[most]))
        capacity[most] -= fewer * _step(edges[most])
    arcs = [(s, d, timed.latency_s[s], m) for s, d, m in _rows(timed, capacity)]
    return Channels(capacity, tuple(arcs))


def _step(edge: Edge) -> int:
    return math.gcd(edge.production, edge.consumption)


def _rows(timed: TimedGraph, capacity: Mapping[int, int]) -> dict[tuple[int, int, int], set[int]]:
    """Return the arcs of full channels, each with the numbers of its edges."""
    x = timed.assignment.expansion
    held: dict[tuple[int, int, int], set[int]] = {}
    for number, size in capacity.items():
        for row in channel_arcs(x, x.graph.edges[number], size):
            held.setdefault(row, set()).add(number)
    return held


def least_capacities(
    timed: TimedGraph, rings: list[Arc], period: float, *, whole: bool
) -> Channels:
    """Return the least capacities found of the data channels with which the period stays the same.

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
                return Channels(capacity, tuple(arcs))
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
