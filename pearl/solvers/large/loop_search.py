"""Assignments and orders of graphs with cycles: starts, then moves, each valued by its orders.

The value of an assignment is whether a modulo schedule exists at 0.9999 times the best period so
far: loads and cycles alone would choose assignments whose orders are bad. Steps are counted and
never timed, so that plans are the same on every host and after a cold compilation; the time limit
only ends a search early.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.solvers.large import loop_moves, timed_native
from pearl.solvers.large.chain_bound import ChainBound, climb
from pearl.solvers.large.chain_program import ChainProgram, Prices
from pearl.solvers.large.load_annealing import LoadProblem, greedy, to_load_problem
from pearl.solvers.large.loop_tables import scratch_of, to_tables
from pearl.solvers.large.starts import contiguous, repaired, spread
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.orders.rings import SAME, Next, Rings, TimedArrays, to_orders
from pearl.time_limit import OutOfTimeError, look

Ints = NDArray[np.int64]

CLOSER = 0.9999
"""Share of the best period at which a modulo schedule of another assignment is looked for."""

GROWTH = 1.06
"""Factor between two periods at which a first schedule is looked for (assumed)."""

POLISH = 40
"""Valuations of swaps of an assignment whose schedule is the best so far (assumed)."""

CHAINS = 5
"""Assignments behind the bound of chains that are tried (assumed)."""

ANNEALING, HOT, COLD = 300_000, 0.01, 0.0005
"""Moves of annealing at most, and its temperatures as shares of the value (assumed)."""

HEATS = (0.01, 0.005, 0.002)
"""First temperatures of later annealing (assumed)."""

SWAPS = 0.15
"""Share of the work that is kept for swaps in the rings of the best assignment (assumed)."""

STRENGTHS = (0.01, 0.03, 0.1, 0.3)
"""Spreads of the factors by which prices are changed at random (assumed)."""

TRIES = 200
"""Random moves, of which the first is taken whose loads and cycles allow a better period."""

NOISES = (0.0, 0.05, 0.1)
"""Shares of the period by which priorities of modulo schedules are moved at random (assumed)."""

EMPTY = np.empty(0, np.int64)


@dataclass
class Loop:
    """An assignment with rings. period_s: its exact period."""

    period_s: float
    place: Ints
    arrays: TimedArrays
    transfers: Ints
    rings: Next


class LoopSearch:
    """The search in one space. best: the best assignment with its rings. bound: that of chains."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self.space, self.b = space, to_load_problem(space)
        self.t = to_tables(self.b)
        self.s = scratch_of(self.t)
        self.random = np.array([(seed + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
        self.dice = np.random.default_rng(seed)
        self.best: Loop | None = None
        self.bound: ChainBound | None = None
        n, arcs = len(self.t.node_unit), len(self.t.arc_edge)
        self._cost_of_bound = 2e-8 * arcs
        self._cost_of_fit = 2e-6 * n
        self._cost_of_swap = 2e-8 * arcs
        self._cost_of_chain = 2.2e-6 * n
        self.near = self.b.loads.near_first, self.b.loads.near

    def run(self, work: float) -> None:
        """Search until `work` is done, in `_cost` units, or the time limit passes."""
        self.left = work
        with suppress(OutOfTimeError):
            program = ChainProgram(self.space)
            self.bound = climb(program)
            starts = sorted(
                ((float(self._bound_s(p)), k, p) for k, p in enumerate(self._starts(program))),
                key=lambda s: s[:2],
            )
            if starts and starts[0][0] > self.bound.bound_s * 1.01:
                place = self._annealed(starts[0][2], ANNEALING, HOT)
                starts.insert(0, (self._bound_s(place), -1, place))
            for _, _, place in starts:
                self._log('start', self._try(place, 2))
            self._search(program)
            self._finish()

    log = None
    length = 4000
    def _log(self, what, won):
        if self.log is None: self.log = {}
        a = self.log.setdefault(what, [0, 0, None])
        a[0] += 1; a[1] += won
        if won: a[2] = round(self.best.period_s, 1)

    def _finish(self) -> None:
        """Other schedules of the best assignment, and swaps from the best ones."""
        if self.best is None: return
        rings = Rings(self.best.arrays, self.random)
        least = self._bound_s(self.best.place) * (1 + SAME)
        made = [(self.best.period_s, self.best.rings)]
        for k in range(12):
            self.left -= self._cost_of_fit
            target = self.best.period_s * (0.98 + 0.01 * (k % 5))
            start = rings.fit(target, 0.1)
            if start is not None:
                r, p = rings.swapped(rings.rings_of(start, target), 20, least)
                self.left -= 20 * self._cost_of_swap
                made.append((p, r))
        made.sort(key=lambda m: m[0])
        for k, (p, r) in enumerate(made[:3]):
            n = int(max(0, self.left) * (0.6, 0.5, 1.0)[k] / self._cost_of_swap)
            if n == 0 or self.best.period_s <= least: break
            r, p = rings.swapped(r, n, least)
            self.left -= n * self._cost_of_swap
            self._log('finish', p < self.best.period_s)
            if p < self.best.period_s:
                self.best.period_s, self.best.rings = p, r
                self._log('finish', True)

    @property
    def _target_s(self) -> float:
        return CLOSER * self.best.period_s if self.best else math.inf

    def _starts(self, program: ChainProgram) -> Iterator[Ints]:
        """Assignments to begin from that the memory of devices holds."""
        assert self.bound is not None
        for _, devices in self.bound.devices[:CHAINS]:
            yield spread(self.b, devices)
        _, devices = program.cheapest(self.bound.prices)
        place = repaired(self.b, spread(self.b, devices))
        if place is not None:
            yield place
        yield from contiguous(self.b, self.t, self.dice)
        place = greedy(self.b)
        if place is None:
            place = repaired(self.b, self.b.loads.seconds.argmin(axis=1))
        if place is not None:
            yield place

    def _annealed(self, place: Ints, steps: int, hot: float) -> Ints:
        best = place.copy()
        steps = int(min(steps, 0.25 * self.left / self._cost_of_bound)) + 1
        loop_moves.anneal(
            self.t, self.b.loads.seconds, *self.near, place.copy(), best, self.s, self.random,
            steps, hot, COLD,
        )  # fmt: skip
        self.left -= steps * self._cost_of_bound
        return best

    def _bound_s(self, place: Ints) -> float:
        return float(timed_native.bound_of(self.t, place, self.s)[0])

    def _search(self, program: ChainProgram) -> None:
        """Better assignments until the work is done but for a part that swaps keep."""
        reserve, turn = SWAPS * self.left, 0
        while self.best is not None and self.left > reserve:
            look()
            if self._is_least:
                return
            turn += 1
            tight = self.best.period_s <= self._bound_s(self.best.place) * (1 + 1e-6)
            if tight or turn % 40 == 0:
                self._anneal_on()
            elif turn % 8 == 0:
                self._perturb(program)
            else:
                self._step()

    def _anneal_on(self) -> None:
        """Loads and cycles bound the best plan: lower both."""
        assert self.best is not None
        hot = float(self.dice.choice(HEATS))
        place = self._annealed(self.best.place, self.length, hot)
        won = False
        if self._bound_s(place) < self._target_s:
            won = self._try(place, 3)
        if not won:
            self.length = int(self.length * 1.5)
        self._log('anneal', won)

    def _perturb(self, program: ChainProgram) -> None:
        assert self.bound is not None
        strength = float(self.dice.choice(STRENGTHS))
        prices, dice = self.bound.prices, self.dice

        def other(values: NDArray[np.float64]) -> NDArray[np.float64]:
            changed: NDArray[np.float64] = values * np.exp(
                strength * dice.normal(size=values.shape)
            )
            return changed

        found = Prices(other(prices.cycles), other(prices.resources), other(prices.memory))
        _, devices = program.cheapest(found)
        self.left -= self._cost_of_chain
        place = repaired(self.b, spread(self.b, devices))
        if place is not None and self._bound_s(place) < self._target_s:
            self._log(f'price{strength}', self._try(place, 1))

    def _step(self) -> None:
        assert self.best is not None
        trial = np.empty_like(self.best.place)
        left = loop_moves.propose(
            self.t, self.b.loads.seconds, *self.near, self.best.place, trial, EMPTY, self.s,
            self.random, self._target_s, TRIES, 3,
        )  # fmt: skip
        self.left -= (TRIES - max(left, 0)) * self._cost_of_bound
        if left >= 0:
            self._log('step', self._try(trial, 1))
        self._log('nostep', left < 0)

    @property
    def _is_least(self) -> bool:
        return (
            self.best is not None
            and self.bound is not None
            and self.best.period_s <= self.bound.bound_s * (1 + 1e-6)
        )

    def _try(self, place: Ints, tries: int) -> bool:
        """Look for a modulo schedule of an assignment below the best period."""
        look()
        arrays, transfers = timed_native.timed_arrays(self.t, place, self.s)
        rings = Rings(arrays, self.random)
        target = self._target_s
        least = self._bound_s(place)
        if target == math.inf:
            target = least
            for _ in range(100):
                self.left -= self._cost_of_fit
                start = rings.fit(target, 0.0)
                if start is not None:
                    break
                target *= GROWTH
        else:
            if least >= target:
                return False
            for k in range(tries):
                self.left -= self._cost_of_fit
                start = rings.fit(target, NOISES[k % len(NOISES)])
                if start is not None:
                    break
        if start is None:
            return False
        found, period = rings.swapped(rings.rings_of(start, target), POLISH, least * (1 + SAME))
        self.left -= POLISH * self._cost_of_swap
        if period < (self.best.period_s if self.best else math.inf):
            self.best = Loop(period, place.copy(), arrays, transfers, found)
            return True
        return False
