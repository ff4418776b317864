"""The best lane orders of a large timed graph: modulo schedules at decreasing periods, then swaps.

Steps are counted, not timed, so that orders are the same on every host and after a cold
compilation. A schedule that was not found proves no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from pearl.planning.timing import Orders, TimedGraph
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.orders.rings import SAME, Next, Rings, to_arrays, to_orders
from pearl.time_limit import OutOfTimeError, look

GROWTH = (1.0, 1.005, 1.01, 1.02, 1.04, 1.07, 1.11, 1.16, 1.25, 1.4, 1.6, 2.0, 3.0, 5.0, 9.0)
"""Periods, as multiples of the bound, at which a first modulo schedule is searched (assumed)."""

HALVINGS = 5
"""Number of periods tried between the last failure and the first success (assumed)."""

RESTARTS = 12
"""Schedules with other random priorities at periods near the best period found (assumed)."""

WORK = 10_000_000
"""Evaluations of swaps times nodes for the best rings found; a quarter of this number for each of
the next two (assumed: together at most a CPU-second)."""


def modulo_orders(
    timing: TimedGraph, known: tuple[Orders, float], *, effort: float = 1.0, seed: int = 1
) -> tuple[Orders, float]:
    """Return the better of `known` orders and those of modulo schedules and swaps, with their
    period.

    effort: share of the usual steps. If the time limit passes, the best orders so far are returned.
    """
    search = _Search(timing, known, seed)
    with suppress(OutOfTimeError):
        search.run(effort)
    return search.best


def rising(
    attempt: Callable[[float], float | None], least: float, most: float, growths: Sequence[float]
) -> tuple[float, float]:
    """Try rising periods up to `most` until one is reached, then halve the range below it. Return
    the shortest period that was reached, infinite if none was, and the longest that was not.

    attempt: from a period to the one that a schedule for it has; None if none was found.
    """
    low, high = least, math.inf
    for growth in growths:
        if least * growth > most:
            break
        if (found := attempt(least * growth)) is not None:
            high = found
            break
        low = least * growth
    for _ in range(HALVINGS if high < math.inf else 0):
        if high <= low * (1 + 1e-4):
            break
        middle = (low + high) / 2
        found = attempt(middle)
        low, high = (middle, high) if found is None else (low, min(high, found))
    return high, low


class _Search:
    """best: the best orders so far and their period. made: period and rings of each schedule."""

    def __init__(self, timing: TimedGraph, known: tuple[Orders, float], seed: int) -> None:
        self.timing, self.best = timing, known
        self.rings = Rings(to_arrays(timing), np.array([seed], np.uint64))
        self.bound_s = timing.order_bound_s
        self.several = any(firing for _, firing in timing.names)
        self.made: list[tuple[float, Next]] = []

    def run(self, effort: float) -> None:
        self._schedules()
        self.made.sort(key=lambda m: m[0])
        valuations = int(effort * WORK / len(self.timing.names))
        for k, (period, rings) in enumerate(self.made[:3]):
            self._offer(rings)
            if period > self.bound_s * (1 + SAME):
                look()
                self._offer(self._swapped(rings, valuations // (1, 4, 4)[k])[0])
            if self.best[1] <= self.bound_s * (1 + SAME):
                break

    def _schedules(self) -> None:
        high, _ = rising(self._try, self.bound_s, self.best[1] * 2, GROWTH)
        if self.bound_s * (1 + SAME) < high < math.inf:
            for k in range(RESTARTS):
                self._schedule(high * (0.98 + 0.01 * (k % 5)), 0.1)

    def _try(self, target_s: float) -> float | None:
        """Search a schedule of this period; return the least period of all schedules so far."""
        if not (self._schedule(target_s, 0.0) or self._schedule(target_s, 0.05)):
            return None
        return min(target_s, *(period for period, _ in self.made))

    def _schedule(self, target_s: float, noise: float) -> bool:
        """Search a schedule of this period; store its rings."""
        look()
        made = self.rings.schedule(target_s, noise, 20, self.bound_s * (1 + SAME), self._is_told)
        if made is not None:
            self.made.append(made)
        return made is not None

    def _is_told(self, rings: Next) -> bool:
        names, lanes = self.timing.names, self.timing.lanes
        return not self.several or to_orders(names, lanes, rings) is not None

    def _swapped(self, rings: Next, valuations: int) -> tuple[Next, float]:
        return self.rings.swapped(rings, valuations, self.bound_s * (1 + SAME))

    def _offer(self, rings: Next) -> None:
        """Accept rings as the best orders if a list expresses them and their exact period is
        less."""
        orders = to_orders(self.timing.names, self.timing.lanes, rings)
        if orders is not None:
            exact = ring_period(self.timing, orders)  # infinite for a cycle without tokens
            if exact < self.best[1] * (1 - SAME):
                self.best = orders, exact
