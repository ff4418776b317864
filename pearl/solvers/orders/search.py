"""The best lane orders of a large timed graph: modulo schedules at falling periods, then swaps.

Steps are counted and never timed, so that orders are the same on every host and after a cold
compilation. No bound follows from a schedule that was not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from pearl.graph.period import Arc
from pearl.planning.timing import Orders, TimedGraph
from pearl.solvers.orders import modulo, swaps
from pearl.solvers.orders.list_orders import in_turn, ring_period
from pearl.time_limit import OutOfTimeError, look

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Next = tuple[Ints, Ints]
"""Rings: node → the next node of its lane, and the tokens of the arc to it."""

GROWTH = (1.0, 1.005, 1.01, 1.02, 1.04, 1.07, 1.11, 1.16, 1.25, 1.4, 1.6, 2.0, 3.0, 5.0, 9.0)
"""Periods, as multiples of the bound, at which a first modulo schedule is looked for (assumed)."""

HALVINGS = 5
"""Periods tried between the last without and the first with a schedule (assumed)."""

PLACEMENTS = 6
"""Placements of a modulo schedule for each node at most (Rau 1994 uses 2 to 6)."""

RESTARTS = 12
"""Schedules with other random priorities at periods near the best one found (assumed)."""

WORK = 10_000_000
"""Valuations of swaps times nodes, for the best rings found; a quarter of that for each of the next
two (assumed: together a CPU-second or less)."""

SAME = 1e-9
"""Relative difference below which two periods count as equal."""


class Rings:
    """The arrays of a timed graph and of the rings of its lanes.

    arcs: dependences, and the order of firings of one task on one lane. An arc between two nodes of
    a lane takes at least the occupancy of the first: the lane does them one after the other.
    """

    def __init__(self, timing: TimedGraph) -> None:
        self.timing, n = timing, len(timing.names)
        self.lanes = list(timing.lanes)
        self.lane = np.zeros(n, np.int64)
        self.lane_first = np.zeros(len(self.lanes) + 1, np.int64)
        for k, name in enumerate(self.lanes):
            self.lane[list(timing.lanes[name])] = k
            self.lane_first[k + 1] = self.lane_first[k] + len(timing.lanes[name])
        self.occupancy = np.array(timing.occupancy_s, np.float64)
        arcs: Sequence[Arc] = [*timing.arcs, *in_turn(timing)]
        self.tails = np.array([a[0] for a in arcs], np.int64)
        self.heads = np.array([a[1] for a in arcs], np.int64)
        self.tokens = np.array([a[3] for a in arcs], np.int64)
        seconds = np.array([a[2] for a in arcs], np.float64)
        alike = (self.lane[self.tails] == self.lane[self.heads]) & (seconds > 0)
        least = np.where(alike, self.occupancy[self.tails], 0.0)
        self.seconds = np.maximum(seconds, least)
        self.out_arcs, self.out_first = _sorted_by(self.tails, n)
        self.in_arcs, self.in_first = _sorted_by(self.heads, n)
        number: dict[str, int] = {}
        self.unit = np.array([number.setdefault(t, len(number)) for t, _ in timing.names], np.int64)
        self.random = np.array([1], np.uint64)

    def fit(self, period_s: float, noise: float) -> Floats | None:
        """Start times of a modulo schedule of this period in seconds; None if none was found."""
        start = np.empty(len(self.lane))
        found = modulo.fit(
            period_s, self.out_first, self.out_arcs, self.in_first, self.in_arcs, self.tails,
            self.heads, self.seconds, self.tokens, self.lane, self.lane_first, self.occupancy,
            noise, self.random, PLACEMENTS * len(start), start,
        )  # fmt: skip
        return start if found else None

    def swapped(self, rings: Next, valuations: int, below_s: float) -> tuple[Next, float]:
        """Rings of the smallest period found by swaps, and the period in seconds."""
        following, ring_tokens = rings
        n = len(self.lane)
        previous = np.empty(n, np.int64)
        previous[following] = np.arange(n)
        first = self.out_first + np.arange(n + 1)
        heads, tokens = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
        seconds = np.empty(first[-1])
        others = np.ones(first[-1], np.bool_)
        others[first[:-1]] = False
        heads[others] = self.heads[self.out_arcs]
        seconds[others] = self.seconds[self.out_arcs]
        tokens[others] = self.tokens[self.out_arcs]
        heads[first[:-1]], tokens[first[:-1]] = following, ring_tokens
        seconds[first[:-1]] = self.occupancy
        best = following.copy(), ring_tokens.copy()
        period, _ = swaps.improve_orders(
            first, heads, seconds, tokens, previous, self.unit, valuations, below_s, self.random,
            *best,
        )  # fmt: skip
        return best, float(period)

    def rings_of(self, start: Floats, period_s: float) -> Next:
        """The rings of a modulo schedule: node → next node of its lane, tokens between them."""
        turn = np.floor(start / period_s + SAME).astype(np.int64)
        phase = np.maximum(0.0, start - turn * period_s)
        following, tokens = np.empty_like(turn), np.empty_like(turn)
        for name in self.lanes:
            nodes = np.array(self.timing.lanes[name], np.int64)
            # Nodes without occupancy start with the next node: they come first.
            order = nodes[np.lexsort((start[nodes], self.occupancy[nodes] > 0, phase[nodes]))]
            then = np.roll(order, -1)
            following[order] = then
            tokens[order] = turn[order] - turn[then]
            tokens[order[-1]] += 1
        return following, tokens

    def orders(self, rings: Next) -> Orders | None:
        """The rings as lists, whose n-th entry of a task is its firing n. None if no list says
        them: all firings of each task must lie in one turn from some cut of the ring on."""
        following, tokens = rings
        orders = {}
        for name in self.lanes:
            entry, ahead = self.timing.lanes[name][0], 0
            ring = []
            for _ in self.timing.lanes[name]:
                ring.append((entry, ahead))
                ahead += int(tokens[entry])
                entry = int(following[entry])
            # The ring closes with one token: `ahead` is 1 now.
            cuts = [c for c in range(len(ring)) if self._is_list(ring, c)]
            if not cuts:
                return None
            lists = [[*ring[c:], *((i, o + 1) for i, o in ring[:c])] for c in cuts]
            least = [sum(o for _, o in row) - len(row) * min(o for _, o in row) for row in lists]
            row = lists[least.index(min(least))]
            lowest = min(o for _, o in row)
            orders[name] = tuple((i, o - lowest) for i, o in row)
        return orders

    def _is_list(self, ring: list[tuple[int, int]], cut: int) -> bool:
        seen: dict[str, tuple[int, int]] = {}
        for k in range(len(ring)):
            i, ahead = ring[(cut + k) % len(ring)]
            ahead += cut + k >= len(ring)
            task, firing = self.timing.names[i]
            before = seen.get(task)
            if before is None:
                if firing:
                    return False
            elif (firing, ahead) != (before[0] + 1, before[1]):
                return False
            seen[task] = firing, ahead
        return True


def _sorted_by(keys: Ints, n: int) -> Next:
    """Node → the numbers of its arcs, as one array with the first place of each node."""
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=first[1:])
    return np.argsort(keys, kind="stable").astype(np.int64), first


def modulo_orders(
    timing: TimedGraph, known: tuple[Orders, float], *, effort: float = 1.0, seed: int = 1
) -> tuple[Orders, float]:
    """The better of `known` orders and those of modulo schedules and swaps, with their period.

    effort: share of the usual steps. What was found is returned if the time limit passes.
    """
    search = _Search(timing, known, seed)
    with suppress(OutOfTimeError):
        search.run(effort)
    return search.best


class _Search:
    """best: the best orders so far and their period. made: period and rings of each schedule."""

    def __init__(self, timing: TimedGraph, known: tuple[Orders, float], seed: int) -> None:
        self.timing, self.best = timing, known
        self.rings, self.bound_s = Rings(timing), timing.order_bound_s
        self.rings.random[0] = seed
        self.made: list[tuple[float, Next]] = []

    def run(self, effort: float) -> None:
        self._schedules()
        self.made.sort(key=lambda m: m[0])
        valuations = int(effort * WORK / len(self.timing.names))
        for k, (period, rings) in enumerate(self.made[:3]):
            if period > self.bound_s * (1 + SAME):
                look()
                rings, _ = self._swapped(rings, valuations // (1, 4, 4)[k])
            self._offer(rings)
            if self.best[1] <= self.bound_s * (1 + SAME):
                break

    def _schedules(self) -> None:
        """Schedules at periods that grow until one is found, then at ever closer ones."""
        bound, low = self.bound_s, self.bound_s
        for growth in GROWTH:
            target = bound * growth
            if target >= self.best[1] * 2 or self._try(target, 0.0) or self._try(target, 0.05):
                break
            low = target
        if not self.made:
            return
        high = min(period for period, _ in self.made)
        for _ in range(HALVINGS):
            if high <= max(low, bound) * (1 + 1e-4):
                break
            target = (low + high) / 2
            if self._try(target, 0.0) or self._try(target, 0.05):
                high = min(target, *(period for period, _ in self.made))
            else:
                low = target
        if high > bound * (1 + SAME):
            for k in range(RESTARTS):
                self._try(high * (0.98 + 0.01 * (k % 5)), 0.1)

    def _try(self, target_s: float, noise: float) -> bool:
        """Look for a schedule of this period; keep its rings."""
        look()
        start = self.rings.fit(target_s, noise)
        if start is None:
            return False
        # A few valuations give the exact period and the first steps from there.
        rings, period = self._swapped(self.rings.rings_of(start, target_s), 20)
        self.made.append((period, rings))
        return True

    def _swapped(self, rings: Next, valuations: int) -> tuple[Next, float]:
        return self.rings.swapped(rings, valuations, self.bound_s * (1 + SAME))

    def _offer(self, rings: Next) -> None:
        """Take rings as the best orders if a list says them and their exact period is less."""
        orders = self.rings.orders(rings)
        if orders is not None:
            exact = ring_period(self.timing, orders)  # infinite for a cycle without tokens
            if exact < self.best[1] * (1 - SAME):
                self.best = orders, exact
