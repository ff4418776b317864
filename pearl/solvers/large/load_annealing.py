"""Assignments of many tasks by annealing of the largest load, and a lower bound by counting.

If many tasks are joined by no cycle, loads bound the period, and an exact model of all copies is
too large to be solved to proof. Then annealing finds the plan. The bound is the larger of the
linear relaxation in `load_bound` and a count of large tasks.
"""

from __future__ import annotations

import math
import threading
import time

import numpy as np
from numpy.typing import NDArray

from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.model.tables import Floats, Ints, Places
from pearl.time_limit import look

MOVES = 50_000
"""Moves of a whole annealing run per item (assumed; for a thousand items 25 s on one core)."""

STAGES = ((2, 5.0, 0.1, 0.45), (4, 1.0, 0.05, 0.3), (8, 0.25, 0.03, 0.1), (32, 0.15, 0.005, 0.15))
"""Stages: power, first and last temperature relative to the change of moving a mean item, share of
the moves (assumed: best of a few tried on graphs of 200 and 1,000 tasks)."""

RUNS = 3
"""Largest number of whole annealing runs."""

SHORT = 0.03
"""Length of the first run, as a share of a whole run."""

_CHUNKS = 20
"""Parts of a stage, among which the remaining time is divided."""

LOOK_S = 0.2
"""Seconds between two checks of the clock, once the duration of moves is known."""


class Annealing(threading.Thread):
    """Annealing with a time limit in a separate thread: a short run for a first result, then whole
    runs from the end of the run before, until `enough` is set.

    best: the largest load found, in seconds, and its lanes. enough: set to stop. ended: an event
        that is set at the end, to be waited for. A `join` that Ctrl-C interrupts takes the thread
        for ended (CPython 3.11).
    """

    def __init__(
        self, b: Places, start: Ints, seed: int, deadline: float, runs: int = RUNS
    ) -> None:
        super().__init__(daemon=True)
        self.b, self.start_place, self.seed = b, start, seed
        self.deadline, self.runs = deadline, runs
        self.best: tuple[float, Ints] = (math.inf, start)
        self.enough, self.ended = False, threading.Event()
        self._moves_per_s = 0.0

    def run(self) -> None:
        place, share = self.start_place.copy(), SHORT
        try:
            for run in range(1 + self.runs):
                self._anneal(place, share, 1 + self.seed * 1000 + run)
                share = 1.0
                if self._over:
                    return
        finally:
            self.ended.set()

    @property
    def _over(self) -> bool:
        return self.enough or time.monotonic() > self.deadline

    def _anneal(self, place: Ints, share: float, seed: int) -> None:
        """Make one run with at most `share` of the moves of a whole run, within the time limit.
        place: changed."""
        b = self.b
        scratch = place.copy()
        state = np.array([(seed * 0x9E3779B97F4A7C15 + 1) % 2**64 or 1], np.uint64)
        step = len(b.lanes) / len(b.t.seconds)
        total = share * MOVES * max(40, len(b.t.seconds))
        parts = 1.0
        for power, hot, cold, part in STAGES:
            most = self._moves(place, scratch, state, 0, 1.0, 1.0, 1.0, power)
            target = min(most, self.best[0]) or 1.0
            unit = power * step
            for chunk in range(_CHUNKS):
                if self._over:
                    return
                from_hot = hot * (cold / hot) ** (chunk / _CHUNKS) * unit
                to_cold = hot * (cold / hot) ** ((chunk + 1) / _CHUNKS) * unit
                moves, now = total * part / _CHUNKS, time.monotonic()
                if self._moves_per_s and self.deadline < math.inf:
                    seconds = (self.deadline - now) * part / _CHUNKS / parts
                    moves = min(moves, self._moves_per_s * seconds)
                self._chunk(place, scratch, state, int(moves) + 1, from_hot, to_cold, target, power)
                self._moves_per_s = moves / max(time.monotonic() - now, 1e-9)
                parts -= part / _CHUNKS

    def _chunk(
        self,
        place: Ints,
        scratch: Ints,
        state: NDArray[np.uint64],
        steps: int,
        hot: float,
        cold: float,
        target: float,
        power: int,
    ) -> None:
        """Make moves by `_moves`, with a check of the clock about every `LOOK_S`."""
        most = int(self._moves_per_s * LOOK_S) or steps
        for done in range(0, steps, most):
            if self._over:
                return
            end = min(steps, done + most)
            from_hot, to_cold = (hot * (cold / hot) ** (k / steps) for k in (done, end))
            self._moves(place, scratch, state, end - done, from_hot, to_cold, target, power)

    def _moves(
        self,
        place: Ints,
        scratch: Ints,
        state: NDArray[np.uint64],
        steps: int,
        hot: float,
        cold: float,
        target: float,
        power: int,
    ) -> float:
        from pearl.solvers.large.annealing import anneal

        most = float(anneal(self.b.t, place, scratch, state, steps, hot, cold, target, power))
        if most < self.best[0]:
            self.best = most, scratch.copy()
        return most


def counting_bound(space: SearchSpace, most: float) -> float:
    """Return a lower bound on the period, because the k largest items must fit on the lanes.

    For a set of items and a period, a lane holds at most as many items as its quickest ones allow.
    The period is too short if all lanes together hold fewer than the items of the set. `most`: a
    period that is known to be long enough.
    """
    x, columns = space.expansion, list[Floats]()
    for d in space.costs.platform.devices:
        lanes = min(space.lanes[d.name], len(space.options))
        column = np.zeros(len(space.classes))
        for c, members in enumerate(space.classes):
            times = [
                x.firings(u) * min((m.estimate.occupancy_s for m in modes), default=math.inf)
                for u, modes in ((u, space.on_device[u].get(d.name, ())) for u in members)
            ]
            # Members may be on several lanes of a device.
            column[c] = sum(times) if lanes == 1 else max(times)
        columns += [column] * lanes
    seconds = np.array(columns).T
    order = np.argsort(-seconds.min(axis=1), kind="stable")
    bound = 0.0
    for k in _sizes(len(order)):
        look()
        sums = np.cumsum(np.sort(seconds[order[:k]], axis=0), axis=0)

        def room(period: float, sums: Floats = sums) -> int:
            return int((sums <= period * (1 + 1e-12)).sum())

        if room(most) < k:
            continue
        low, high = bound, most
        if room(low) >= k:
            continue
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if room(middle) >= k else (middle, high)
        bound = low
    return bound


def _sizes(n: int) -> list[int]:
    """Return all set sizes for few items, some sixty sizes for many."""
    return sorted({*range(1, min(n, 60) + 1), *(int(n * f / 60) for f in range(1, 61))} - {0})
