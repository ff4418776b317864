"""List orders of lanes for one assignment, and the period of any orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import start_times, token_free_cycle, topological
from pearl.planning.timing import Orders, TimedGraph, channel_arcs
from pearl.time_limit import OutOfTimeError, look, watched, within

LATE_TASKS = 16
"""Most tasks and copies of a timed graph of which one may be late in a list order (assumed: each
takes as long as another list order)."""

SAME = 1e-9
"""Relative difference below which two periods count as equal."""


def listed_orders(
    timing: TimedGraph, deadline: float, bound_s: float = 0.0
) -> tuple[Orders, float]:
    """Return the best of some list orders, and its period; after the deadline, the first of
    them. bound_s: a known lower bound of the period."""
    waits = [*timing.arcs, *in_turn(timing)]
    full = [*waits, *_room(timing)]
    best = _listed(timing, full, 0) or _listed(timing, waits, 0)
    assert best is not None
    for late, room, priority in chain(
        ((late, False, 1) for late in _lateness(timing)),
        ((None, *way) for way in ((True, 1), (False, 0), (False, 1))),
    ):
        if best[1] > bound_s * (1 + SAME) and best[1] > timing.order_bound_s * (1 + SAME):
            with suppress(OutOfTimeError), within(deadline):
                look()
                orders = _listed(timing, full if room else waits, priority, late)
                best = min(best, orders or best, key=lambda o: o[1])
    return best


def _lateness(timing: TimedGraph) -> Iterator[list[int]]:
    """Yield by how many iterations each node is late in lists of two iterations: in turn each task,
    the one of the longest firing first, is late by one with all that needs its results at once.

    So a long firing of one iteration can run beside firings of the next.
    """
    number: dict[str, int] = {}
    task = [number.setdefault(name, len(number)) for name, _ in timing.names]
    if len(number) > LATE_TASKS:
        return
    least: dict[tuple[int, int], int] = {}
    for s, d, _, m in watched(timing.arcs):
        key = task[s], task[d]
        least[key] = min(m, least.get(key, m))
    longest = [0.0] * len(number)
    for t, seconds in zip(task, timing.occupancy_s, strict=True):
        longest[t] = max(longest[t], seconds)
    known = [[0] * len(number), [1] * len(number)]
    for first in sorted(number.values(), key=lambda t: -longest[t]):
        late = [int(first == t) for t in range(len(number))]
        for _ in number:
            for (s, d), m in least.items():
                late[d] = max(late[d], late[s] - m)
        if late not in known:
            known.append(late)
            yield [late[t] for t in task]


def ring_period(timing: TimedGraph, orders: Orders) -> float:
    """Return the exact period with these orders; infinite if they deadlock."""
    arcs = [*timing.arcs, *timing.ring(orders)]
    if token_free_cycle(len(timing.names), arcs):
        return math.inf
    return howard(len(timing.names), arcs)[0]


def shifted_orders(timing: TimedGraph, orders: Orders) -> Orders | None:
    """Return orders whose entries run ahead, so that only loads bound the period; None if a cycle
    joins two tasks.

    The entries of a lane follow one another without pause. Longest paths in whole iterations give
    the number of iterations that a task is late (a modulo schedule with fixed phases). The time is
    proportional to the graph. Entries of searched modulo schedules run less far ahead.
    """
    period_s = timing.order_bound_s
    number: dict[str, int] = {}
    task = [number.setdefault(name, len(number)) for name, _ in timing.names]
    flow = [(task[s], task[d]) for s, d, _, _ in timing.arcs if task[s] != task[d]]
    if period_s <= 0 or len(topological(len(number), flow)) < len(number):
        return None
    phase = [0.0] * len(task)
    for entries in orders.values():
        ends = itertools.accumulate((timing.occupancy_s[i] for i, _ in entries), initial=0.0)
        for (i, _), at in zip(entries, ends, strict=False):
            phase[i] = at
    waits = [
        (task[s], task[d], math.ceil((phase[s] + w - phase[d]) / period_s - SAME), m)
        for s, d, w, m in timing.arcs
    ]
    late = [round(turn) for turn in start_times(len(number), waits, 1.0)]
    latest = {lane: max(late[task[i]] for i, _ in entries) for lane, entries in orders.items()}
    return {
        lane: tuple((i, latest[lane] - late[task[i]]) for i, _ in entries)
        for lane, entries in orders.items()
    }


def in_turn(timing: TimedGraph) -> list[Arc]:
    """Return arcs that keep the firings of a task on a lane in their order, without loss: firings
    differ only by their tokens, which are produced and consumed in this order."""
    arcs: list[Arc] = []
    for members in timing.lanes.values():
        rows: dict[str, list[int]] = {}
        for i in members:
            rows.setdefault(timing.names[i][0], []).append(i)
        for row in rows.values():
            row.sort(key=lambda i: timing.names[i][1])
            for k, i in enumerate(row):
                last = k + 1 == len(row)
                arcs.append((i, row[0 if last else k + 1], timing.occupancy_s[i], int(last)))
    return arcs


def to_list(
    names: Sequence[tuple[str, int]], ring: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...] | None:
    """Return the list that expresses a ring, with the least sum of offsets; None if there is none.

    ring: (node, offset in iterations) in the order of execution, from any node on.
    """
    several = any(names[i][1] for i, _ in ring)
    cuts = [c for c in range(len(ring)) if not several or _is_list(names, ring, c)]
    if not cuts:
        return None
    offsets = [ahead for _, ahead in ring]
    total = sum(offsets)
    # Entries before the cut are at the end of the list, one iteration later.
    before = [math.inf, *itertools.accumulate(offsets, min)]
    after = [*itertools.accumulate(offsets[::-1], min)][::-1]
    sums = [total + c - len(ring) * min(after[c], before[c] + 1) for c in cuts]
    c = cuts[sums.index(min(sums))]
    row = [*ring[c:], *((i, ahead + 1) for i, ahead in ring[:c])]
    lowest = min(ahead for _, ahead in row)
    return tuple((i, ahead - lowest) for i, ahead in row)


def _is_list(names: Sequence[tuple[str, int]], ring: Sequence[tuple[int, int]], cut: int) -> bool:
    seen: dict[str, tuple[int, int]] = {}
    for k in range(len(ring)):
        i, ahead = ring[(cut + k) % len(ring)]
        ahead += cut + k >= len(ring)
        task, firing = names[i]
        before = seen.get(task)
        if before is None:
            if firing:
                return False
        elif (firing, ahead) != (before[0] + 1, before[1]):
            return False
        seen[task] = firing, ahead
    return True


def _room(timing: TimedGraph) -> list[Arc]:
    """Return the arcs by which full channels delay their producers, at the least capacities."""
    x = timing.assignment.expansion
    channels = (e for e in x.graph.edges if e.is_channel)
    rows = (row for e in channels for row in channel_arcs(x, e, e.least_capacity))
    return [(s, d, timing.latency_s[s], m) for s, d, m in rows]


def _listed(
    timing: TimedGraph, arcs: Sequence[Arc], priority: int, late: Sequence[int] | None = None
) -> tuple[Orders, float] | None:
    """Return a list order: of the firings that could start first, the one with the longest path to
    the end (priority 1) or of the earliest task (0) goes next.

    arcs: what firings wait for; None if this deadlocks. With full channels at their least capacity,
    a lane reads a result before it writes the next. late: iterations by which each node is late; 0
    for all by default.
    """
    n = len(timing.names)
    out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    waits = [0] * n
    for s, d, w, m in watched(arcs):
        if m + (late[d] - late[s] if late else 0) == 0:
            out[s].append((d, w))
            waits[d] += 1
    sequence, left = [i for i in range(n) if waits[i] == 0], waits[:]
    for i in watched(sequence):
        for d, _ in out[i]:
            left[d] -= 1
            if left[d] == 0:
                sequence.append(d)
    tail = [0.0] * n
    for i in watched(reversed(sequence if priority else [])):
        tail[i] = max((w + tail[d] for d, w in out[i]), default=timing.latency_s[i])
    lane_of = {i: lane for lane, members in timing.lanes.items() for i in members}
    latest = max(late) if late else 0
    free = dict.fromkeys(timing.lanes, 0.0)
    arrival = [0.0] * n
    ready = {i for i in range(n) if waits[i] == 0}
    order: dict[str, list[tuple[int, int]]] = {lane: [] for lane in timing.lanes}
    for _ in watched(range(n)):
        if not ready:
            break
        begin, _, i = min((max(arrival[k], free[lane_of[k]]), -tail[k], k) for k in ready)
        ready.remove(i)
        order[lane_of[i]].append((i, latest - late[i] if late else 0))
        free[lane_of[i]] = begin + timing.occupancy_s[i]
        for d, w in out[i]:
            arrival[d] = max(arrival[d], begin + w)
            waits[d] -= 1
            if waits[d] == 0:
                ready.add(d)
    if sum(len(entries) for entries in order.values()) < n:
        return None
    orders = {lane: tuple(entries) for lane, entries in order.items()}
    return orders, ring_period(timing, orders)
