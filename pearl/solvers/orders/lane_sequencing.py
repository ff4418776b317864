"""Lane orders: the best rings for one assignment, by conflict-driven branch and bound.

At a node of the search the maximum cycle ratio gives a period and a periodic schedule. Where two
firings of one lane overlap in it, an integer K (their order and how many iterations one runs
ahead) separates them: arcs i → j with K tokens and j → i with 1 − K, weighted with the occupancies.
This is the disjunction of cyclic job shops (Hanen and Munier 1995; Brucker and Kampmeyer 2008).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.graph.period import Arc, howard, start_times
from pearl.planning.timing import Orders, TimedGraph
from pearl.solvers.orders.list_orders import in_turn, listed_orders, ring_period
from pearl.time_limit import OutOfTimeError, drained, look, watched, within

MANY = 30
"""Nodes of a timed graph from which modulo schedules are tried: below, branch and bound finds the
best orders without loading compiled code."""

NODES = 400
"""Searched nodes of one assignment at most (assumed: a second or less for graphs of this size)."""

FAR = 1 << 20
"""Tokens between nodes that no path joins."""

_SAME = 1e-9
"""Relative difference below which two periods count as equal."""


@dataclass(frozen=True)
class OrderResult:
    """The best orders found for an assignment; no order has a period below bound_s."""

    orders: Orders
    period_s: float
    bound_s: float


def best_orders(
    timing: TimedGraph,
    *,
    below_s: float = math.inf,
    deadline: float = math.inf,
    nodes: int = NODES,
) -> OrderResult:
    """Orders of least period. Orders that are not below below_s need not be told apart.

    deadline: in `time.monotonic()` seconds; list orders alone are found past it. bound_s equals
    period_s when the search finished, or is at least below_s when it finished without finding
    anything below.
    """
    bound = timing.order_bound_s
    orders, period = listed_orders(timing, deadline)
    with suppress(OutOfTimeError), within(deadline):
        if period > bound * (1 + _SAME):
            orders, period = _pipelined(timing, orders, period)
        many = len(timing.names) >= MANY
        if many and period > bound * (1 + _SAME) and bound < below_s:
            from pearl.solvers.orders.search import modulo_orders

            orders, period = modulo_orders(timing, (orders, period))
        if period > bound * (1 + _SAME) and bound < below_s:
            orders, period, bound = _search(timing, orders, period, below_s, deadline, nodes)
            if not many and period > bound * (1 + _SAME) and bound < below_s * (1 - _SAME):
                orders, period = _improve(timing, orders, period, deadline)
    return OrderResult(orders, period, min(bound, period))


def no_order_below(timing: TimedGraph, period_s: float, nodes: int) -> bool:
    """Whether it is proven, within so many searched nodes, that no orders have a period below
    period_s."""
    if period_s <= timing.order_bound_s * (1 + _SAME):
        return True
    if period_s == math.inf:
        return False
    _, _, bound = _search(timing, {}, period_s, period_s, math.inf, nodes)
    return bound >= period_s * (1 - _SAME)


def _pipelined(timing: TimedGraph, orders: Orders, period: float) -> tuple[Orders, float]:
    """The same orders with entries that run ahead, where that helps.

    Every lane does its entries one right after the other, in a schedule of fixed period: how many
    iterations late each of them then has to be follows from the dependences, longest paths in whole
    iterations (modulo scheduling with fixed phases, after Rau 1994). Without cycles in the graph
    this reaches the largest load.
    """
    n = len(timing.names)
    for stretch in (1.0, 1.02, 1.05, 1.1, 1.2, 1.4):
        look()
        target = timing.order_bound_s * stretch
        if target >= period * (1 - _SAME):
            break
        phase = [0.0] * n
        for ring in orders.values():
            at = 0.0
            for i, _ in ring:
                phase[i] = at
                at += timing.occupancy_s[i]
        arcs = [
            (s, d, float(math.ceil((phase[s] + w - phase[d]) / target - 1e-9) - m), 0)
            for s, d, w, m in timing.arcs
        ]
        late = _longest_paths(n, arcs)
        if late is None:
            continue
        found = {}
        for lane, ring in orders.items():  # in their own order: entries of no time tie in phase
            latest = max(late[i] for i, _ in ring)
            found[lane] = tuple((i, latest - late[i]) for i, _ in ring)
        value = ring_period(timing, found)
        if value < period:
            return found, value
    return orders, period


def _longest_paths(n: int, arcs: Sequence[Arc]) -> list[int] | None:
    """Whole numbers ≥ 0, the least with late[d] ≥ late[s] + w on every arc; None if there are none
    (Bellman and Ford)."""
    out: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for s, d, w, _ in watched(arcs):
        out[s].append((d, int(w)))
    late, hops = [0] * n, [0] * n
    queue, waiting = deque(range(n)), [True] * n
    for here in drained(queue):
        waiting[here] = False
        for there, wait in out[here]:
            if late[here] + wait > late[there]:
                late[there] = late[here] + wait
                hops[there] = hops[here] + 1
                if hops[there] > n:
                    return None
                if not waiting[there]:
                    waiting[there] = True
                    queue.append(there)
    return late


def _search(
    timing: TimedGraph,
    orders: Orders,
    period: float,
    below_s: float,
    deadline: float,
    limit: int,
) -> tuple[Orders, float, float]:
    n = len(timing.names)
    arcs = [*timing.arcs, *in_turn(timing)]
    floor = timing.order_bound_s
    root = max(floor, howard(n, arcs)[0])
    limit = min(limit, int(4e7 / (n * n)))  # distances of all open nodes: some 300 MB at most
    if limit == 0:
        return orders, period, root
    tie = 0
    heap = [(_rounded(root), 0, tie, root, arcs, token_distances(n, arcs))]
    stuck, bound = math.inf, root
    visited = 0
    try:
        while heap:
            _, minus_depth, _, bound, arcs, distance = heapq.heappop(heap)
            if bound >= min(period, below_s) * (1 - _SAME):
                break
            if visited >= limit or time.monotonic() > deadline:
                return orders, period, min(bound, stuck)
            visited += 1
            start = start_times(n, arcs, bound)
            clash = _overlap(timing, start, bound)
            if clash is None:
                found = _in_order_of(timing, start, bound)
                exact = ring_period(timing, found) if found else math.inf
                if found and exact < period:
                    orders, period = found, exact
                if exact > bound * (1 + _SAME):
                    stuck = min(stuck, bound)  # no list of entries says this order
                continue
            i, j = clash
            low, high = _choices(distance, i, j, sum(a[2] for a in arcs) / bound)
            for k in range(low, high + 1):
                child = [
                    *arcs,
                    (i, j, timing.occupancy_s[i], k),
                    (j, i, timing.occupancy_s[j], 1 - k),
                ]
                value = max(bound, howard(n, child)[0])
                if value < min(period, below_s) * (1 - _SAME):
                    tie += 1
                    nearer = _with_arc(_with_arc(distance, i, j, k), j, i, 1 - k)
                    heapq.heappush(
                        heap, (_rounded(value), minus_depth - 1, tie, value, child, nearer)
                    )
    except OutOfTimeError:
        return orders, period, min(bound, stuck)
    return orders, period, min(period, stuck, max(below_s, root))


def _choices(distance: NDArray[np.int64], i: int, j: int, periods: float) -> tuple[int, int]:
    """The range of K. Every cycle needs a token, so paths bound it; where no path leads back, one
    firing may run ahead of the other as far as pays: no path is longer than `periods`."""
    reach = 2 + math.ceil(periods)
    low = 1 - int(distance[j, i]) if distance[j, i] < FAR else None
    high = int(distance[i, j]) if distance[i, j] < FAR else None
    if low is None:
        low = -reach if high is None else high - reach
    return low, low + reach if high is None else high


def _rounded(period: float) -> float:
    return float(f"{period:.9e}")


def token_distances(n: int, arcs: Sequence[Arc]) -> NDArray[np.int64]:
    """Fewest tokens on a path between every two nodes (Floyd and Warshall)."""
    distance = np.full((n, n), FAR, dtype=np.int64)
    np.fill_diagonal(distance, 0)
    for s, d, _, m in arcs:
        if s != d:
            distance[s, d] = min(distance[s, d], m)
    for k in range(n):
        look()
        np.minimum(distance, distance[:, k, None] + distance[None, k, :], out=distance)
    distance[distance > FAR // 2] = FAR
    return distance


def _with_arc(distance: NDArray[np.int64], i: int, j: int, tokens: int) -> NDArray[np.int64]:
    through = distance[:, i, None] + tokens + distance[None, j, :]
    nearer: NDArray[np.int64] = np.minimum(distance, through)
    nearer[nearer > FAR // 2] = FAR
    return nearer


def _overlap(timing: TimedGraph, start: list[float], period: float) -> tuple[int, int] | None:
    """The two firings of one lane that overlap longest in a periodic schedule."""
    worst, pair = 1e-9 * period, None
    for members in timing.lanes.values():
        for x, i in enumerate(members):
            look()
            for j in members[x + 1 :]:
                if timing.names[i][0] == timing.names[j][0]:
                    continue
                gap = (start[j] - start[i]) % period
                before, after = timing.occupancy_s[i] - gap, gap + timing.occupancy_s[j] - period
                if gap > period - 1e-9 * period:  # j starts with i, but for rounding
                    before, after = timing.occupancy_s[i], timing.occupancy_s[j]
                    shared = min(before, after)
                elif gap < 1e-9 * period:
                    shared = min(timing.occupancy_s[i], timing.occupancy_s[j])
                else:
                    shared = max(before, after)
                if shared > worst:
                    worst, pair = shared, (i, j)
    return pair


def _in_order_of(timing: TimedGraph, start: list[float], period: float) -> Orders | None:
    """Rings in the order of a periodic schedule, as lists in which the n-th entry of a task is its
    firing n; None where no list says it (two tasks of a lane that both wrap around)."""
    orders: dict[str, tuple[tuple[int, int], ...]] = {}
    for lane, members in timing.lanes.items():
        turns = {i: math.floor(start[i] / period + 1e-9) for i in members}
        phase = {i: round(start[i] / period - turns[i], 9) for i in members}
        ring = [
            (i, -turns[i])
            for i in sorted(members, key=lambda i: (phase[i], timing.occupancy_s[i] > 0, start[i]))
        ]
        fits = []
        for _ in ring:
            look()
            if _firings_in_turn(timing, ring):
                least = min(o for _, o in ring)
                fits.append(tuple((i, o - least) for i, o in ring))
            ring = [*ring[1:], (ring[0][0], ring[0][1] + 1)]
        if not fits:
            return None
        orders[lane] = min(fits, key=lambda r: sum(o for _, o in r))
    return orders


def _firings_in_turn(timing: TimedGraph, ring: Sequence[tuple[int, int]]) -> bool:
    seen: dict[str, int] = {}
    for i, _ in ring:
        name, firing = timing.names[i]
        if firing != seen.get(name, -1) + 1:
            return False
        seen[name] = firing
    return True


def _improve(
    timing: TimedGraph, orders: Orders, period: float, deadline: float
) -> tuple[Orders, float]:
    """Local search: swap neighbours in the rings of the critical cycle while that helps."""
    with suppress(OutOfTimeError), within(deadline):
        better = True
        while better:
            better = False
            arcs = [*timing.arcs, *timing.ring(orders)]
            critical = set(howard(len(timing.names), arcs)[1])
            for lane, ring in orders.items():
                for k in range(len(ring) if len(ring) > 1 else 0):
                    (a, ahead), (b, next_ahead) = ring[k], ring[(k + 1) % len(ring)]
                    same = timing.names[a][0] == timing.names[b][0]
                    if same or a not in critical or b not in critical:
                        continue
                    look()
                    swapped = list(ring)
                    wraps = k + 1 == len(ring)
                    swapped[k], swapped[(k + 1) % len(ring)] = (
                        (b, next_ahead + wraps),
                        (a, ahead - wraps),
                    )
                    least = min(o for _, o in swapped)
                    if not _firings_in_turn(timing, swapped):
                        continue
                    trial = {**orders, lane: tuple((i, o - least) for i, o in swapped)}
                    value = ring_period(timing, trial)
                    if value < period * (1 - _SAME):
                        orders, period, better = trial, value, True
                        break
                if better:
                    break
    return orders, period
