"""Assignments of many tasks by annealing of the largest load, and a lower bound by counting.

If many tasks are joined by no cycle, loads bound the period, and an exact model of all copies is
too large to be solved to proof. Then annealing finds the plan. The bound is the larger of the
linear relaxation in `load_bound` and a count of large tasks.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.planning.costs import Mode
from pearl.planning.timing import Assignment
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import look, watched

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PAYER = {"link": 0.0, "lane": 1.0, "nobody": 2.0}

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


class Loads(NamedTuple):
    """Times and memory of items on lanes, and of transfers on links, as arrays.

    seconds: (items, lanes), seconds of each item on each lane; infinite if not allowed.
    memory: (items,), bytes.
    capacity: (devices,), bytes.
    device: (lanes,), the device of each lane.
    host: the device that relays copies between devices without a link.
    direct: (devices, devices), the link between two devices, or -1.
    up: (devices,), the link to the host.
    links: (links, 3): seconds per message, seconds per byte, payer (0 link, 1 lane, 2 nobody).
    item: (producers,), the item of each producer.
    messages: (producers,), messages per iteration.
    first: (producers + 1,); the consumers of producer q are user[first[q]:first[q + 1]].
    user: (consumers,), the item of each consumer.
    size: (consumers,), bytes that each consumer needs of a message.
    near_first, near: neighbours of item i are near[near_first[i]:near_first[i + 1]].
    make_first, make: producers whose copies depend on the place of item i, in the same format.
    """

    seconds: Floats
    memory: Floats
    capacity: Floats
    device: Ints
    host: int
    direct: Ints
    up: Ints
    links: Floats
    item: Ints
    messages: Floats
    first: Ints
    user: Ints
    size: Floats
    near_first: Ints
    near: Ints
    make_first: Ints
    make: Ints


@dataclass(frozen=True)
class LoadProblem:
    """A search space as arrays for `annealing`. Items are its classes.

    lanes: (device, number) of each lane.
    """

    space: SearchSpace
    lanes: tuple[tuple[str, int], ...]
    loads: Loads

    def assignment(self, place: Ints) -> Assignment:
        """Return the assignment with each item on the given lane, in its mode of least
        occupancy."""
        p = self.space
        lane = {u: self.lanes[place[c]] for c, members in enumerate(p.classes) for u in members}
        best = [
            best_mode(p, u, lane[u][0], shared_width(p, lane[u][0])) for u in range(len(p.options))
        ]
        numbers = tuple(lane[u][1] for u in range(len(p.options)))
        return Assignment(p.expansion, p.costs, tuple(m for m in best if m is not None), numbers)

    def place_of(self, a: Assignment) -> Ints | None:
        """Return the lanes of an assignment if each item is on one lane, else None."""
        number = {lane: k for k, lane in enumerate(self.lanes)}
        place = np.zeros(len(self.space.classes), np.int64)
        for c, members in enumerate(self.space.classes):
            lanes = {number.get((a.modes[u].device, a.lanes[u]), -1) for u in members}
            if len(lanes) > 1 or -1 in lanes or self.loads.seconds[c, min(lanes)] == math.inf:
                return None
            place[c] = lanes.pop()
        return place


def to_load_problem(space: SearchSpace) -> LoadProblem:
    """Return a search space as arrays. Items are its classes; lanes share a device's width
    evenly."""
    p = space
    x, platform = p.expansion, p.costs.platform
    names = [d.name for d in platform.devices]
    index = {n: k for k, n in enumerate(names)}
    lanes = tuple((n, k) for n in names for k in range(min(p.lanes[n], len(p.classes))))
    seconds = np.full((len(p.classes), len(lanes)), math.inf)
    for c, members in watched(enumerate(p.classes)):
        times: dict[str, float] = {}
        for n in names:
            best = [best_mode(p, u, n, shared_width(p, n)) for u in members]
            if all(best):
                times[n] = math.fsum(
                    x.firings(u) * m.estimate.occupancy_s
                    for u, m in zip(members, best, strict=True)
                    if m
                )
        for k, (n, _) in enumerate(lanes):
            seconds[c, k] = times.get(n, math.inf)
    number = {link.name: k for k, link in enumerate(platform.links)}
    direct = np.full((len(names), len(names)), -1, np.int64)
    up = np.full(len(names), -1, np.int64)
    for link in platform.links:
        a, b = index[link.a], index[link.b]
        direct[a, b] = direct[b, a] = number[link.name]
        if platform.host in (link.a, link.b):
            up[a if link.b == platform.host else b] = number[link.name]
    cables = [[k.per_message_s, 1 / k.bytes_per_s, _PAYER[k.paid_by]] for k in platform.links]
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    item_of = {u: c for c, members in enumerate(p.classes) for u in members}
    producers: dict[str, dict[int, tuple[int, float]]] = {}
    for edge in watched(x.graph.edges):
        i, j = unit[edge.src], unit[edge.dst]
        if item_of[i] == item_of[j]:
            continue
        size = edge.bytes if len(x.units[i]) == 1 else edge.bytes * x.graph.repetition[edge.src]
        users = producers.setdefault(edge.src, {})
        users[j] = item_of[j], max(size, users.get(j, (0, 0.0))[1])
    makers = list(producers)
    rows = [[users[j] for j in sorted(users)] for users in producers.values()]
    item = np.array([item_of[unit[t]] for t in makers], np.int64)
    near: list[set[int]] = [set() for _ in p.classes]
    make: list[set[int]] = [set() for _ in p.classes]
    for q, row in enumerate(rows):
        make[item[q]].add(q)
        for c, _ in row:
            make[c].add(q)
            near[c].add(int(item[q]))
            near[item[q]].add(c)
    near_first, near_list = packed([sorted(s) for s in near])
    make_first, make_list = packed([sorted(s) for s in make])
    first, user = packed([[c for c, _ in row] for row in rows])
    loads = Loads(
        seconds=seconds,
        memory=np.array(p.memory_bytes),
        capacity=np.array([p.capacity_bytes[n] * (1 + 1e-12) for n in names]),
        device=np.array([index[n] for n, _ in lanes], np.int64),
        host=index[platform.host],
        direct=direct,
        up=up,
        links=np.array(cables).reshape(-1, 3),
        item=item,
        messages=np.array(
            [x.graph.repetition[t] if len(x.units[unit[t]]) == 1 else 1 for t in makers], float
        ),
        first=first,
        user=user,
        size=np.array([s for row in rows for _, s in row], float),
        near_first=near_first,
        near=near_list,
        make_first=make_first,
        make=make_list,
    )
    return LoadProblem(p, lanes, loads)


def shared_width(p: SearchSpace, device: str) -> int:
    return p.costs.platform.device(device).width // p.lanes[device]


def best_mode(p: SearchSpace, u: int, device: str, width: int) -> Mode | None:
    fitting = [m for m in p.on_device[u].get(device, ()) if m.width <= width]
    return min(fitting, key=lambda m: (m.estimate.occupancy_s, m.estimate.latency_s), default=None)


def packed(rows: list[list[int]]) -> tuple[Ints, Ints]:
    first = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=first[1:])
    return first, np.array([v for r in rows for v in r], np.int64)


def greedy(b: LoadProblem) -> Ints | None:
    """Place the largest items first, each on the least loaded lane; None if memory is too small.
    Copies do not count."""
    loads, load = b.loads, np.zeros(len(b.lanes))
    free = loads.capacity.copy()
    place = np.zeros(len(loads.seconds), np.int64)
    quickest = loads.seconds.min(axis=1)
    tight = loads.memory / max(float(loads.memory.max(initial=0.0)), 1e-300)
    fits = np.isfinite(loads.capacity).any() and loads.memory.sum() > 0.5 * loads.capacity.sum()
    for c in np.lexsort((-quickest, -tight)) if fits else np.argsort(-quickest, kind="stable"):
        after = np.where(free[loads.device] >= loads.memory[c], load + loads.seconds[c], math.inf)
        k = int(after.argmin())
        if after[k] == math.inf:
            return None
        place[c] = k
        load[k] += loads.seconds[c, k]
        free[loads.device[k]] -= loads.memory[c]
    return place


class Annealing(threading.Thread):
    """Annealing with a time limit in a separate thread: a short run for a first result, then whole
    runs from the end of the run before, until `enough` is set.

    best: the largest load found, in seconds, and its lanes. enough: set to stop. ended: an event
        that is set at the end, to be waited for. A `join` that Ctrl-C interrupts takes the thread
        for ended (CPython 3.11).
    """

    def __init__(
        self, b: LoadProblem, start: Ints, seed: int, deadline: float, runs: int = RUNS
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
        step = len(b.lanes) / len(b.loads.seconds)
        total = share * MOVES * max(40, len(b.loads.seconds))
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

        loads = self.b.loads
        most = float(anneal(loads, place, scratch, state, steps, hot, cold, target, power))
        if most < self.best[0]:
            self.best = most, scratch.copy()
        return most


def counting_bound(b: LoadProblem, most: float) -> float:
    """Return a lower bound on the period, because the k largest items must fit on the lanes.

    For a set of items and a period, a lane holds at most as many items as its quickest ones allow.
    The period is too short if all lanes together hold fewer than the items of the set. `most`: a
    period that is known to be long enough.
    """
    quickest = b.loads.seconds.min(axis=1)
    order = np.argsort(-quickest, kind="stable")
    p = b.space
    several = {n for n, k in b.lanes if k > 0}
    seconds = b.loads.seconds.copy()
    for c, members in enumerate(p.classes):  # members may be on several lanes of a device
        for k, (n, _) in enumerate(b.lanes):
            if n in several and len(members) > 1 and seconds[c, k] < math.inf:
                seconds[c, k] = max(
                    p.expansion.firings(u)
                    * min(m.estimate.occupancy_s for m in p.options[u] if m.device == n)
                    for u in members
                )
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
