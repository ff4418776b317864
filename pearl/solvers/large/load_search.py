"""Throughput of many tasks: annealing of loads on one core, a bound of loads on the other.

The plan is the better one of annealing and, if the load program is small or copies are free, of
HiGHS on the load program. The bound is the best of the load program's relaxation, its search tree,
and a count.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress

import numpy as np

from pearl.planning.timing import Assignment
from pearl.solvers.large.load_annealing import LOOK_S, Annealing, counting_bound
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.large.starts import greedy
from pearl.solvers.model.bounds import NOTHING, CostBound
from pearl.solvers.model.result import SAME
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.model.tables import Ints, Places, to_places
from pearl.solvers.model.traits import FIRST, MANY, is_acyclic
from pearl.time_limit import OutOfTimeError

COLUMNS = 8_000
"""Number of variables of a load program up to which HiGHS also gets the period form (assumed: some
300 tasks on 16 devices with copies)."""

MOMENT_S = 1.0
"""Longest time in seconds for annealing alone, before the load program is built (assumed)."""

RELAXED = 0.6
"""Share of the time that the relaxation of loads may always take, and its search if annealing needs
the same core afterwards (assumed)."""


ENDING_S = 0.5
"""Seconds to wait for a search in the background. A search whose code is still being compiled ends
by itself afterwards."""


def chained(space: SearchSpace) -> CostBound:
    """Return the bound of chains and rings of a search space. The bound is 0 if no cycle joins two
    tasks, if classes are few, or if time runs out."""
    if len(space.classes) < MANY or is_acyclic(space):
        return NOTHING
    from pearl.solvers.large.chain_bound import chain_bound

    with suppress(OutOfTimeError):
        return CostBound(chain_bound(space).bound_s, "chains")
    return NOTHING


class LoadSearch:
    """Annealing and bound of one search space. bound: no plan of the space has a shorter period.
    small: whether the period form should also be tried. fits: whether that form is not too
    large."""

    def __init__(
        self,
        space: SearchSpace,
        known: Assignment | None,
        known_s: float,
        seed: int,
        workers: int,
    ) -> None:
        self.space, self.seed, self.workers = space, seed, workers
        self.balance: Places = to_places(space, even=True)
        placed = self.balance.place_of(known) if known else None
        self._start: Ints | None = placed if placed is not None else greedy(self.balance)
        self.loads, self._known_s = LoadProgram(space, known_s), known_s
        host = space.costs.platform.host
        self._meshed = any(host not in (k.a, k.b) for k in space.costs.platform.links)
        edges, devices = len(space.expansion.graph.edges), len(space.costs.platform.devices)
        columns = len(self.loads.linear.upper) + (edges * devices**2 if self._meshed else 0)
        self.fits = fits = columns <= COLUMNS
        costs = space.costs
        self._counted = all(s >= 0 for s in costs.pair_extra_s.values())
        single = max(space.lanes.values()) == 1 and not self._meshed
        self._whole = single and (fits or not self.loads.copying)
        loads_alone = self._whole and is_acyclic(space) and self._start is not None
        self.small = self._start is None or (fits and not loads_alone)
        self.bound = NOTHING
        self._searches: list[Annealing] = []
        self._placed: Ints | None = None

    def run(self, deadline: float, until: float) -> None:
        """Compute the bound and search until `until`. Annealing in the background continues until
        `deadline`; both are `time.monotonic()` seconds. One worker does both in sequence."""
        now, alone = time.monotonic(), self.workers == 1
        moment, solved = now + min(MOMENT_S, FIRST * (until - now)), False
        if self._start is not None and (self._whole or not alone):
            self._anneal(moment if alone else deadline)
        if self._whole and self._searches:
            while not self._searches[0].ended.wait(0.02) and time.monotonic() < moment + LOOK_S:
                pass
            best = self._best()
            if best is not None:  # the scale of the search space
                self.loads = LoadProgram(self.space, best[0])
            solved = self._exactly(now + RELAXED * (until - now) if alone else until)
        else:
            found_s = self.loads.solve(max(until, now + RELAXED * (deadline - now)))
            self.bound = max(self.bound, CostBound(found_s, "loads"))
        self.bound = max(self.bound, chained(self.space))
        best = self._best()
        known_s = self._known_s if best is None else min(best[0], self._known_s)
        if self._counted:
            self.bound = max(self.bound, CostBound(counting_bound(self.space, known_s), "count"))
        if self._start is not None and not solved and (alone or not self._whole):
            self._anneal(until)
        while time.monotonic() < until:
            best = self._best()
            going = [s for s in self._searches if not s.ended.is_set()]
            if not going or (best is not None and best[0] <= self.bound.cost * (1 + SAME)):
                break
            going[0].ended.wait(0.05)

    def _anneal(self, until: float) -> None:
        """Start a further search in the background."""
        assert self._start is not None
        seed = self.seed + 500 * len(self._searches)
        self._searches.append(Annealing(self.balance, self._start, seed, until))
        self._searches[-1].start()

    def _exactly(self, until: float) -> bool:
        """Solve the load program with integers; return whether it is solved.

        If devices have one lane and communicate through the host, the load program omits only
        cycles. Its period has no upper bound from the best plan: with such a bound, HiGHS 1.12
        takes ten times as long for published placement instances.
        """
        loads = self.loads
        for places in loads.on:
            for v in places.values():
                loads.linear.integer[v] = True
        left = until - time.monotonic()
        if left <= 0:
            return False
        dual, x, solved = loads.linear.minimise([(loads.period, 1.0)], math.inf, left)
        if self._counted:
            self.bound = max(self.bound, CostBound(dual * (1 - 1e-9) / loads.per_s, "loads"))
        if x is None:
            return False
        number = {device: k for k, (device, _) in enumerate(self.balance.lanes)}
        chosen = (max(places, key=lambda d: float(x[places[d]])) for places in loads.on)
        place = np.array([number[d] for d in chosen], np.int64)
        used = np.bincount(
            self.balance.t.device[place],
            weights=self.balance.t.memory,
            minlength=len(self.balance.t.capacity),
        )
        if (used <= self.balance.t.capacity).all():
            self._placed = place
        return solved

    def _best(self) -> tuple[float, Ints] | None:
        results = [s.best for s in self._searches if s.best[0] < math.inf]
        return min(results, key=lambda f: f[0], default=None)

    def stop(self) -> list[Assignment]:
        """Stop all searches in the background and return the best assignments found."""
        for s in self._searches:
            s.enough = True
        end = time.monotonic() + ENDING_S
        for s in self._searches:
            s.ended.wait(max(0.0, end - time.monotonic()))
        return self.found()

    def found(self, *, coupled: bool = True) -> list[Assignment]:
        """Return the best assignments found so far. coupled: only those within all rules."""
        assignments = [self.balance.assignment(self._placed)] if self._placed is not None else []
        best = self._best()
        if best is not None:
            assignments.append(self.balance.assignment(best[1]))
        return [a for a in assignments if not (coupled and self.space.violates_coupling(a))]
