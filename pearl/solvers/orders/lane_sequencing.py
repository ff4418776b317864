"""Lane orders: the best rings for one assignment, by conflict-driven branch and bound.

At a node of the search, the maximum cycle ratio gives a period and a periodic schedule. If two
firings of one lane overlap in the schedule, an integer K separates them: their order, and the
number of iterations by which one runs ahead. The arcs are i → j with K tokens and j → i with 1 − K,
weighted with the occupancies. This is the disjunction of cyclic job shops (Hanen and Munier 1995;
Brucker and Kampmeyer 2008).
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import start_times
from pearl.planning.timing import Orders, TimedGraph
from pearl.solvers.orders.list_orders import (
    SAME,
    in_turn,
    listed_orders,
    ring_period,
    shifted_orders,
    to_list,
)
from pearl.time_limit import OutOfTimeError, look, within

MANY = 30
"""Number of nodes of a timed graph from which modulo schedules are tried first. For smaller graphs,
branch and bound finds most best orders without loading compiled code."""

NODES = 400
"""Largest number of searched nodes of one assignment (assumed: at most a second for such
graphs)."""

FAR = 1 << 20
"""Tokens between nodes without a path."""


@dataclass(frozen=True)
class OrderResult:
    """The best orders found for an assignment; no orders have a period below bound_s."""

    orders: Orders
    period_s: float
    bound_s: float


def best_orders(
    timing: TimedGraph,
    *,
    below_s: float = math.inf,
    deadline: float = math.inf,
    nodes: int = NODES,
    effort: float = 1.0,
    bound_s: float = 0.0,
) -> OrderResult:
    """Return orders of least period. Orders that are not below below_s may be treated as equal.

    bound_s: a known lower bound of the period.
    nodes: largest number of searched nodes. effort: share of the usual steps of modulo schedules.
    deadline: in `time.monotonic()` seconds. After it, and with effort 0, only list orders are
    tried; they reach the largest load if no cycle joins two tasks. bound_s equals period_s if the
    search finished, or is at least below_s if it finished without a period below.
    """
    orders, period = listed_orders(timing, deadline, bound_s)
    if period <= bound_s * (1 + SAME):
        return OrderResult(orders, period, min(bound_s, period))
    bound = timing.order_bound_s
    many = len(timing.names) >= MANY

    def is_open() -> bool:
        return period > bound * (1 + SAME) and bound < below_s

    with suppress(OutOfTimeError), within(deadline if effort > 0 else -math.inf):
        look()
        if many and is_open():
            orders, period = _modulo_orders(timing, orders, period, effort)
        if is_open():
            orders, period, bound = _search(timing, orders, period, below_s, deadline, nodes)
        if not many and is_open():
            orders, period = _modulo_orders(timing, orders, period, effort)
    with suppress(OutOfTimeError):
        shifted = shifted_orders(timing, orders) if is_open() else None
        exact = ring_period(timing, shifted) if shifted else math.inf
        if shifted and exact < period:
            orders, period = shifted, exact
    return OrderResult(orders, period, min(bound, period))


def _modulo_orders(
    timing: TimedGraph, orders: Orders, period: float, effort: float
) -> tuple[Orders, float]:
    from pearl.solvers.orders.search import modulo_orders

    return modulo_orders(timing, (orders, period), effort=effort)


def _search(
    timing: TimedGraph,
    orders: Orders,
    period: float,
    below_s: float,
    deadline: float,
    limit: int,
) -> tuple[Orders, float, float]:
    n = len(timing.names)
    arcs = [*timing.raised_arcs, *in_turn(timing)]
    floor = timing.order_bound_s
    root = max(floor, howard(n, arcs)[0])
    limit = min(limit, int(4e7 / (n * n)))  # keeps the distances of all open nodes below 300 MB
    if limit == 0:
        return orders, period, root
    tie = 0
    heap = [(_rounded(root), 0, tie, root, arcs, token_distances(n, arcs))]
    stuck, bound = math.inf, root
    visited = 0
    try:
        while heap:
            _, minus_depth, _, bound, arcs, distance = heapq.heappop(heap)
            if bound >= min(period, below_s) * (1 - SAME):
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
                if exact > bound * (1 + SAME):
                    stuck = min(stuck, bound)  # no list of entries expresses this order
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
                if value < min(period, below_s) * (1 - SAME):
                    tie += 1
                    nearer = _with_arc(_with_arc(distance, i, j, k), j, i, 1 - k)
                    heapq.heappush(
                        heap, (_rounded(value), minus_depth - 1, tie, value, child, nearer)
                    )
    except OutOfTimeError:
        return orders, period, min(bound, stuck)
    return orders, period, min(period, stuck, max(below_s, root))


def _choices(distance: NDArray[np.int64], i: int, j: int, periods: float) -> tuple[int, int]:
    """Return the range of K. Every cycle needs a token, so paths bound K. Without a path back, one
    firing may run ahead as far as that is useful: no path is longer than `periods`."""
    reach = 2 + math.ceil(periods)
    low = 1 - int(distance[j, i]) if distance[j, i] < FAR else None
    high = int(distance[i, j]) if distance[i, j] < FAR else None
    if low is None:
        low = -reach if high is None else high - reach
    return low, low + reach if high is None else high


def _rounded(period: float) -> float:
    return float(f"{period:.9e}")


def token_distances(n: int, arcs: Sequence[Arc]) -> NDArray[np.int64]:
    """Return the fewest tokens on a path between every two nodes (Floyd and Warshall)."""
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
    """Return the two firings of one lane with the longest overlap in a periodic schedule."""
    worst, pair = 1e-9 * period, None
    for members in timing.lanes.values():
        for x, i in enumerate(members):
            look()
            for j in members[x + 1 :]:
                if timing.names[i][0] == timing.names[j][0]:
                    continue
                gap = (start[j] - start[i]) % period
                before, after = timing.occupancy_s[i] - gap, gap + timing.occupancy_s[j] - period
                if gap > period - 1e-9 * period:  # j starts with i, except for rounding
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
    """Return the rings in the order of a periodic schedule, as lists whose n-th entry of a task is
    its firing n; None if no list expresses the order (two tasks of a lane both wrap around)."""
    orders: dict[str, tuple[tuple[int, int], ...]] = {}
    for lane, members in timing.lanes.items():
        look()
        turns = {i: math.floor(start[i] / period + 1e-9) for i in members}
        phase = {i: round(start[i] / period - turns[i], 9) for i in members}
        ring = [
            (i, -turns[i])
            for i in sorted(members, key=lambda i: (phase[i], timing.occupancy_s[i] > 0, start[i]))
        ]
        row = to_list(timing.names, ring)
        if row is None:
            return None
        orders[lane] = row
    return orders
