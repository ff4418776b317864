"""Assignments and orders of graphs with cycles: first assignments, then moves, all with orders.

An assignment is better if a modulo schedule exists at 0.9999 times the best period so far. Loads
and cycles alone would choose assignments with bad orders. Steps are counted, not timed, so plans
are the same on every host and after a cold compilation; the time limit only ends a search early.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.solvers.large import loop_moves, timed_native
from pearl.solvers.large.chain_bound import ChainBound, chain_bound
from pearl.solvers.large.starts import contiguous, every, few, greedy, mended, spread
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.model.tables import (
    Ints,
    Scratch,
    Tables,
    lumped,
    producers,
    scratch_of,
    to_places,
)
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.orders.rings import SAME, Next, Rings, TimedArrays, to_orders
from pearl.solvers.orders.search import GROWTH, rising
from pearl.time_limit import OutOfTimeError, look

CLOSER = 0.9999
"""Share of the best period at which a modulo schedule of another assignment is searched."""

GROWTHS = (*GROWTH, *(3.0**k for k in range(3, 12)))
"""Periods, as multiples of the bound, at which a first schedule is searched (assumed)."""

SWAPPED = 0.05
"""CPU-seconds of swaps of each of the two best schedules (assumed)."""

GAIN = 0.08
"""Share by which swaps may shorten a period (seen: 0.06)."""

POLISH = 40
"""Evaluations of swaps for an assignment with the best schedule so far (assumed)."""

CHAINS, ORDERED = 5, 3
"""Number of assignments from the bound of chains that are tried, and number of first assignments of
all kinds that get orders (assumed)."""

LONG, SHORT, LONGER = 300_000, 4_000, 1.5
"""Largest number of moves of the first annealing; first number of moves of later ones; factor by
which this number grows after an annealing without gain (assumed)."""

HOT, COLD, HEATS = 0.002, 0.0002, (0.005, 0.002, 0.001)
"""First and last temperature of annealing as shares of the value, and first temperatures of later
annealing (the best of some between 0.03 and 0.001 on rings of 200 tasks)."""

TUNED, HOTTER = 200, 3.0
"""Number of classes for those temperatures, and the largest factor by which temperatures rise for
fewer classes, because each class then has a larger share of the value (the best of four rules
tried)."""

FIRST = 0.25
"""Largest share of the remaining work for one annealing (assumed)."""

ANNEALED = 0.45
"""Share of the work on other assignments that goes into annealing; the rest goes into steps
(assumed)."""

SWAPS = 0.15
"""Share of the work reserved for swaps in the rings of the best assignment (assumed)."""

LOOSE, MORE_SWAPS = 1.05, 0.5
"""Ratio of period and bound from which swaps gain more than other assignments, and the share of the
work then reserved for swaps (seen on rings of 200 tasks)."""

ROUNDS, SOME, HOTTEST = 4, 40_000, 0.05
"""Number of first annealings of lumped graphs, their moves, and the highest first
temperature (assumed)."""

PER_LANE = 1.5e-8
"""CPU-seconds of a step for each lane of a pool (assumed)."""

COARSE = 0.5
"""Share of the later annealing that is of the lumped graph, if units fire several times
(assumed)."""

TRIES, MOVES = 200, 3
"""Number of random changes of the best assignment, of which the first with loads and cycles that
allow a better period is used, and the largest number of moves of one change (assumed)."""

NOISES = (0.0, 0.05, 0.1)
"""Shares of the period by which priorities of modulo schedules change at random (assumed)."""

AGAIN = 12
"""Number of schedules of the best assignment with other priorities (assumed)."""


@dataclass
class PlacedRings:
    """An assignment with rings. period_s: its exact period. cost: in seconds or joules."""

    period_s: float
    cost: float
    place: Ints
    arrays: TimedArrays
    transfers: Ints
    rings: Next


def start_of_stream(
    space: SearchSpace, seed: int, problem: Problem, starts: Sequence[Assignment], work: float
) -> Ints | None:
    """Return an assignment of one pool whose lumped firings have the least period that a search of
    `work` CPU-seconds finds; None if no task fires several times, or there are more devices."""
    b = to_places(space, problem)
    coarse = lumped(b)
    if coarse is None or len(set(b.t.device)) > 1:
        return None
    coarse = coarse._replace(sent_first=np.zeros_like(coarse.sent_first))  # nothing is copied
    search = LoopSearch(space, seed, problem, starts, coarse)
    search.run(work)
    return search.best.place if search.best else None


class LoopSearch:
    """The search in one space. best: the best assignment with its rings. bound: that of chains.
    few: whether all assignments are valued.

    Costs are periods within the limit of power, or energy. problem: with the rules that couple
    lanes; None: without them. starts: further first assignments. coarse: tables of lumped firings,
    which take the place of the space's; `orders` then tells nothing.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        problem: Problem | None = None,
        starts: Sequence[Assignment] = (),
        coarse: Tables | None = None,
    ) -> None:
        self.space, self.b = space, to_places(space, problem)
        self.t = self.b.t if coarse is None else coarse
        self.s = scratch_of(self.t)
        self.random = np.array([(seed + 1) * 0x9E3779B97F4A7C15 % 2**64], np.uint64)
        self.dice = np.random.default_rng(seed)
        self.best: PlacedRings | None = None
        self.bound: ChainBound | None = None
        self.senders = producers(space)
        self._given = starts
        self._several = bool((self.t.firings > 1).any())
        self.few = few(self.b)
        self._length, self._left = SHORT, 0.0
        coarse = lumped(self.b) if coarse is None else None
        self._coarse = None if coarse is None else (coarse, scratch_of(coarse))
        self._heat = min(HOTTER, max(1.0, TUNED / len(space.classes)))
        # CPU-seconds of steps (2 x AMD EPYC, Zen 5) divide the work; no clock is read.
        n, arcs = len(self.t.node_unit), len(self.t.arc_edge)
        self._swap_cost = 1e-6 + 1.6e-8 * arcs
        self._bound_cost = self._swap_cost + PER_LANE * len(self.t.device) * self.t.pooled
        self._fit_cost = 5e-5 + 2e-6 * n

    def run(self, work: float) -> None:
        """Search until steps of about `work` CPU-seconds are done, or the time limit passes."""
        self._left, kept = work, SWAPS * work
        with suppress(OutOfTimeError):
            self.bound = chain_bound(self.space)
            for place in () if self.t.pooled else contiguous(self.b, self.dice):
                self._order(mended(self.b, place))
            self._begin()
            if self.best and self.best.period_s > LOOSE * self._bound_s(self.best.place):
                kept = MORE_SWAPS * work
            if self.few:
                for place in self.every():
                    if self._left <= kept:
                        break
                    self._try(place, len(NOISES))
            else:
                self._search(kept)
            self._finish()

    def orders(self) -> tuple[Assignment, Orders, float] | None:
        """Return the best assignment, its orders as in a plan, and their exact period in seconds;
        None if there is none, or if pair terms exclude it."""
        if self.best is None:
            return None
        a = self.b.assignment(self.best.place)
        if self.space.violates_coupling(a):
            return None
        timing = build_timed_graph(a)
        names = [
            ("+".join(self.space.expansion.units[u]), f) for u, f in self.space.expansion.nodes
        ]
        names += self._transfer_names(self.best.transfers)
        number = {name: i for i, name in enumerate(timing.names)}
        at = np.array([number[name] for name in names], np.int64)
        following, tokens = np.empty_like(at), np.empty_like(at)
        following[at], tokens[at] = at[self.best.rings[0]], self.best.rings[1]
        orders = to_orders(timing.names, timing.lanes, (following, tokens))
        return None if orders is None else (a, orders, ring_period(timing, orders))

    def _transfer_names(self, transfers: Ints) -> list[tuple[str, int]]:
        devices = [d.name for d in self.space.costs.platform.devices]
        seen: dict[str, int] = {}
        names = []
        for p, d in transfers:
            name = f"{self.senders[p]}>{devices[d]}"
            names.append((name, seen.get(name, 0)))
            seen[name] = seen.get(name, 0) + 1
        return names

    def _begin(self) -> None:
        """Begin with assignments of little load and quick cycles, the least bound first."""
        assert self.bound is not None
        starts = [(self._least(p), k, p) for k, p in enumerate(self._starts())]
        starts.sort(key=lambda start: (self._excess(start[2]), *start[:2]))
        worth = starts and starts[0][0] > self.bound.bound_s * 1.001
        if worth or (starts and self._excess(starts[0][2]) > 0):
            place = self._annealed(starts[0][2], LONG, HOT)
            starts.insert(0, (self._least(place), -1, place))
        for _, _, place in starts[:ORDERED]:
            self._order(mended(self.b, place))
        for k in range(ROUNDS if starts and self._coarse else 0):
            hot = HOTTEST / 2 ** (k % 3)
            place = self.best.place if self.best else starts[0][2]
            self._order(self._annealed(place, SOME, hot, self._coarse))

    def _starts(self) -> Iterator[Ints]:
        """Yield the first assignments; some may break rules."""
        assert self.bound is not None
        for a in self._given:
            place = self.b.place_of(a)
            if place is not None:
                yield place
        if self.t.pooled:
            for k in np.flatnonzero(np.isfinite(self.t.seconds).all(axis=0)):
                yield np.full(len(self.t.seconds), k)
            yield self.t.seconds.argmin(axis=1)
            return
        for _, devices in self.bound.devices[:CHAINS]:
            yield spread(self.b, devices)
        place = greedy(self.b)
        yield self.t.seconds.argmin(axis=1) if place is None else place

    def _bound_s(self, place: Ints) -> float:
        return float(timed_native.bound_of(self.t, place, self.s)[0])

    def _least(self, place: Ints) -> float:
        """Return a lower bound on the cost of an assignment."""
        return self._cost(place, self._bound_s(place))

    def _cost(self, place: Ints, period_s: float) -> float:
        return float(timed_native.cost_of(self.t, place, period_s))

    def _period_at(self, place: Ints, cost: float) -> float:
        return float(timed_native.period_at(self.t, place, cost))

    def _excess(self, place: Ints) -> float:
        return float(timed_native.excess(self.t, place, self.s))

    @property
    def _target(self) -> float:
        """A cost a little less than that of the best plan."""
        return CLOSER * self.best.cost if self.best else math.inf

    @property
    def _is_least(self) -> bool:
        if self.best is None or self.bound is None or self.t.frugal:
            return False
        return self.best.cost <= self.bound.bound_s * (1 + 1e-6)

    def _accept(
        self, period_s: float, place: Ints, arrays: TimedArrays, transfers: Ints, rings: Next
    ) -> bool:
        """Keep an assignment with rings if it costs less than the best one."""
        cost = self._cost(place, period_s)
        if self.best is not None and cost >= self.best.cost:
            return False
        self.best = PlacedRings(period_s, cost, place.copy(), arrays, transfers, rings)
        return True

    def _search(self, until: float) -> None:
        """Search for better assignments until `until` CPU-seconds of work are left."""
        begin, annealed = self._left, 0.0
        while self.best is not None and self._left > until and not self._is_least:
            look()
            before = self._left
            if annealed > ANNEALED * (begin - before):
                self.step(self.best.place)
            else:
                self._anneal(self.best.place)
                annealed += before - self._left

    def every(self) -> Iterator[Ints]:
        """Yield every assignment whose bound is below the best period, the least bound first."""
        for bound_s, place in self.bounds():
            if bound_s >= self._target:
                return
            yield place

    def bounds(self) -> Iterator[tuple[float, Ints]]:
        """Yield the bound in seconds and the lanes of every assignment, the least bound first."""
        return every(self.b, self.s)

    def step(self, place: Ints) -> None:
        """Try the assignment after a few random moves."""
        trial = np.empty_like(place)
        left = loop_moves.propose(
            self.t, place, trial, self.s, self.random, self._target, TRIES, MOVES
        )
        self._left -= (TRIES - max(left, 0)) * self._bound_cost + 1e-6
        if left >= 0:
            self._try(trial, 1)

    def _anneal(self, place: Ints) -> None:
        """Try an assignment after annealing of loads and cycles."""
        coarse = self._coarse if self._coarse and self.dice.random() < COARSE else None
        place = self._annealed(place, self._length, float(self.dice.choice(HEATS)), coarse)
        if not self._order(place):
            self._length = int(self._length * LONGER)

    def _annealed(
        self, place: Ints, steps: int, hot: float, coarse: tuple[Tables, Scratch] | None = None
    ) -> Ints:
        """Return an assignment after annealing; coarse: of the graph whose firings are lumped."""
        t, s = coarse or (self.t, self.s)
        best, cost = (
            place.copy(),
            self._bound_cost - 1.6e-8 * (len(self.t.arc_edge) - len(t.arc_edge)),
        )
        steps = int(min(steps, FIRST * max(0.0, self._left) / cost)) + 1
        hot, cold = self._heat * hot, self._heat * COLD
        loop_moves.anneal(t, place.copy(), best, s, self.random, steps, hot, cold)
        self._left -= steps * cost
        return best

    def _try(self, place: Ints, tries: int) -> bool:
        """Search for a modulo schedule of an assignment below the best cost."""
        look()
        least = self._bound_s(place)
        if self._cost(place, least) >= self._target or self._excess(place) > 0:
            return False
        target = min(self._period_at(place, self._target), GROWTHS[-1] * least)
        arrays, transfers = timed_native.timed_arrays(self.t, place, self.s)
        rings = Rings(arrays, self.random)
        for k in range(tries):
            made = self._fitted(rings, transfers, target, NOISES[k % len(NOISES)], least)
            if made is not None and self._accept(made[0], place, arrays, transfers, made[1]):
                return True
        return False

    def _order(self, place: Ints | None) -> bool:
        """Search for the best orders of an assignment: schedules at increasing periods until one is
        found, then by bisection, then swaps. Return whether the best cost decreased."""
        if place is None:
            return False
        known, least = self._target, self._bound_s(place)
        if self._cost(place, least) >= known or self._excess(place) > 0:
            return False
        before = self._period_at(place, known)
        arrays, transfers = timed_native.timed_arrays(self.t, place, self.s)
        rings = Rings(arrays, self.random)
        made: list[tuple[float, Next]] = []

        def scheduled(target: float) -> float | None:
            look()
            for noise in NOISES:
                fitted = self._fitted(rings, transfers, target, noise, least)
                if fitted is not None:
                    made.append(fitted)
                    return min(period for period, _ in made)
            return None

        rising(scheduled, least, before * (1 + GAIN), GROWTHS)
        made.sort(key=lambda m: m[0])
        for period, found in made[:2]:
            worth = self._cost(place, period * (1 - GAIN)) < self._target
            if worth and period > least * (1 + SAME):
                valuations = int(SWAPPED / self._swap_cost)
                look()
                found, period = rings.swapped(found, valuations, least * (1 + SAME))
                self._left -= SWAPPED
                if not self._is_list(arrays, transfers, found):
                    continue
            self._accept(period, place, arrays, transfers, found)
        return self._target < known

    def _fitted(
        self, rings: Rings, transfers: Ints, target: float, noise: float, least: float
    ) -> tuple[float, Next] | None:
        """Return period and rings of a modulo schedule after some swaps; None if none was found, or
        if no list expresses it."""
        self._left -= self._fit_cost
        made = rings.schedule(
            target,
            noise,
            POLISH,
            least * (1 + SAME),
            partial(self._is_list, rings.arrays, transfers),
        )
        self._left -= POLISH * self._swap_cost if made else 0.0
        return made

    def _is_list(self, arrays: TimedArrays, transfers: Ints, rings: Next) -> bool:
        if not self._several:
            return True
        x = self.space.expansion
        names = [*(("+".join(x.units[u]), f) for u, f in x.nodes)]
        names += self._transfer_names(transfers)
        lanes: dict[int, list[int]] = {}
        for i, k in enumerate(arrays.lane):
            lanes.setdefault(int(k), []).append(i)
        return to_orders(names, {str(k): tuple(v) for k, v in lanes.items()}, rings) is not None

    def _finish(self) -> None:
        """Try other schedules of the best assignment, and swaps from the best schedules."""
        best = self.best
        if best is None:
            return
        rings, least = Rings(best.arrays, self.random), self._bound_s(best.place) * (1 + SAME)
        made = [(best.period_s, best.rings)]
        for k in range(AGAIN if best.period_s > least else 0):
            look()
            target = best.period_s * (0.98 + 0.01 * (k % 5))
            self._left -= self._fit_cost
            start = rings.fit(target, NOISES[-1])
            if start is not None:
                found, period = rings.swapped(rings.rings_of(start, target), POLISH, least)
                self._left -= POLISH * self._swap_cost
                made.append((period, found))
        made.sort(key=lambda m: m[0])
        for k, (_, rings_before) in enumerate(made[:3]):
            valuations = int(max(0.0, self._left) * (0.6, 0.5, 1.0)[k] / self._swap_cost)
            if valuations == 0 or best.period_s <= least:
                break
            look()
            found, period = rings.swapped(rings_before, valuations, least)
            self._left -= valuations * self._swap_cost
            told = self._is_list(best.arrays, best.transfers, found)
            if told and period < best.period_s:
                best.period_s, best.rings = period, found
                best.cost = self._cost(best.place, period)
