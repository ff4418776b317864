"""The rings of lanes as arrays: from a modulo schedule, by swaps, and as lists of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.graph.cycle_ratio import Arc
from pearl.planning.timing import Orders, TimedGraph
from pearl.solvers.orders import modulo, swaps
from pearl.solvers.orders.list_orders import in_turn, to_list
from pearl.time_limit import left_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Next = tuple[Ints, Ints]
"""Rings: node → the next node of its lane, and the tokens of the arc to it."""

Told = Callable[[Next], bool]
"""Whether lists of a plan express rings."""

PLACEMENTS = 6
"""Largest number of placements of a modulo schedule per node (Rau 1994 uses 2 to 6)."""

PART = 6_000_000
"""Evaluations of swaps times nodes between two checks of the clock: 0.2 CPU-seconds."""

SAME = 1e-9
"""Relative difference below which two periods count as equal."""


# Functions compiled by numba build these tuples: the digest of machine code covers this file.
class TimedArrays(NamedTuple):
    """A timed graph as arrays.

    tails, heads, seconds, tokens: arcs, including the order of firings of one task on one lane. An
        arc between two nodes of a lane takes at least the occupancy of the first node, because the
        lane runs them one after the other.
    out_first, out_arcs: node → the numbers of its arcs, out_arcs[out_first[u] : out_first[u + 1]];
        in_first, in_arcs in the same way for the arcs that lead to it.
    lane: node → lane. lane_first: lane → its first cell in a table with one cell per node.
    occupancy: node → seconds. unit: node → number of its task, whose firings keep their order.
    """

    tails: Ints
    heads: Ints
    seconds: Floats
    tokens: Ints
    out_first: Ints
    out_arcs: Ints
    in_first: Ints
    in_arcs: Ints
    lane: Ints
    lane_first: Ints
    occupancy: Floats
    unit: Ints


def to_arrays(timing: TimedGraph) -> TimedArrays:
    """Return the arrays of a timed graph, with its lanes in their order."""
    n = len(timing.names)
    lane = np.zeros(n, np.int64)
    lane_first = np.zeros(len(timing.lanes) + 1, np.int64)
    for k, nodes in enumerate(timing.lanes.values()):
        lane[list(nodes)] = k
        lane_first[k + 1] = lane_first[k] + len(nodes)
    occupancy = np.array(timing.occupancy_s, np.float64)
    arcs: Sequence[Arc] = [*timing.raised_arcs, *in_turn(timing)]
    tails = np.array([a[0] for a in arcs], np.int64)
    heads = np.array([a[1] for a in arcs], np.int64)
    number: dict[str, int] = {}
    return TimedArrays(
        tails,
        heads,
        np.array([a[2] for a in arcs], np.float64),
        np.array([a[3] for a in arcs], np.int64),
        *_sorted_by(tails, n),
        *_sorted_by(heads, n),
        lane,
        lane_first,
        occupancy,
        np.array([number.setdefault(t, len(number)) for t, _ in timing.names], np.int64),
    )


def _sorted_by(keys: Ints, n: int) -> Next:
    """Return the numbers of the arcs of each node: the first position of each node, and all
    arcs."""
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=first[1:])
    return first, np.argsort(keys, kind="stable").astype(np.int64)


class Rings:
    """Modulo schedules and swaps on the arrays of a timed graph. random: state of the generator."""

    def __init__(self, arrays: TimedArrays, random: NDArray[np.uint64]) -> None:
        self.arrays, self.random = arrays, random

    def fit(self, period_s: float, noise: float) -> Floats | None:
        """Return the starts of a modulo schedule of this period, seconds; None if none was
        found."""
        start = np.empty(len(self.arrays.lane))
        steps = PLACEMENTS * len(start)
        found = modulo.fit(period_s, self.arrays, noise, self.random, steps, start)
        return start if found else None

    def rings_of(self, start: Floats, period_s: float) -> Next:
        """Return the rings of a modulo schedule."""
        a = self.arrays
        turn = np.floor(start / period_s + SAME).astype(np.int64)
        phase = np.maximum(0.0, start - turn * period_s)
        # Nodes without occupancy start together with the next node: they come first.
        order = np.lexsort((start, a.occupancy > 0, phase, a.lane))
        then = np.roll(order, -1)
        last = np.flatnonzero(a.lane[order] != a.lane[then]) if len(order) else order
        if len(last) == 0:
            last = np.array([len(order) - 1])
        then[last] = order[np.concatenate([[0], last[:-1] + 1])]
        following, tokens = np.empty_like(turn), np.empty_like(turn)
        following[order] = then
        tokens[order] = turn[order] - turn[then]
        tokens[order[last]] += 1
        return following, tokens

    def schedule(
        self, period_s: float, noise: float, polish: int, below_s: float, is_told: Told
    ) -> tuple[float, Next] | None:
        """Return period and rings of a modulo schedule of about this period after some swaps; None
        if none was found, or if no list expresses it."""
        start = self.fit(period_s, noise)
        if start is None:
            return None
        first = self.rings_of(start, period_s)
        found, exact_s = self.swapped(first, polish, below_s)
        if not is_told(found):
            found, exact_s = self.swapped(first, 1, 0.0)
            if not is_told(found):
                return None  # other priorities may give a schedule that a list expresses
        return exact_s, found

    def swapped(self, rings: Next, valuations: int, below_s: float) -> tuple[Next, float]:
        """Return the rings of the smallest period found by swaps, and the period in seconds. The
        time limit ends the search, but never before its first part."""
        best, period = rings, math.inf
        while valuations > 0 and period > below_s:
            part = min(valuations, PART // len(self.arrays.lane) + 1)
            valuations -= part
            found, found_s = self._swapped(best, part, below_s)
            if found_s < period:
                best, period = found, found_s
            if left_s() == 0:
                break
        return best, period

    def _swapped(self, rings: Next, valuations: int, below_s: float) -> tuple[Next, float]:
        following, ring_tokens = rings
        a, n = self.arrays, len(self.arrays.lane)
        previous = np.empty(n, np.int64)
        previous[following] = np.arange(n)
        first = a.out_first + np.arange(n + 1)
        heads, tokens = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
        seconds = np.empty(first[-1])
        others = np.ones(first[-1], np.bool_)
        others[first[:-1]] = False
        heads[others] = a.heads[a.out_arcs]
        seconds[others] = a.seconds[a.out_arcs]
        tokens[others] = a.tokens[a.out_arcs]
        heads[first[:-1]], tokens[first[:-1]] = following, ring_tokens
        seconds[first[:-1]] = a.occupancy
        best = following.copy(), ring_tokens.copy()
        period, _ = swaps.improve_orders(
            first, heads, seconds, tokens, previous, a.unit, valuations, below_s, self.random, *best
        )
        return best, float(period)


def to_orders(
    names: Sequence[tuple[str, int]], lanes: Mapping[str, Sequence[int]], rings: Next
) -> Orders | None:
    """Return the rings as lists whose n-th entry of a task is its firing n; None if no lists
    express them. All firings of each task must lie in one turn, from some cut of the ring on."""
    following, tokens = rings
    orders = {}
    for name, members in lanes.items():
        entry, ahead = members[0], 0
        ring = []
        for _ in members:
            ring.append((entry, ahead))
            ahead += int(tokens[entry])
            entry = int(following[entry])
        # The ring closes with one token, so `ahead` is 1 here.
        row = to_list(names, ring)
        if row is None:
            return None
        orders[name] = row
    return orders
