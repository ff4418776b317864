"""Makespan by tabu search: one firing at a time to another lane or position in its lane.

Mastrolilli and Gambardella 2000, "Effective neighbourhood functions for the flexible job shop
problem", Journal of Scheduling 3(1), with transfers between devices. A firing on a critical path is
removed and inserted where the longest path through it is shortest; heads and tails of the graph
without the firing give the length of the path. The search begins with the best list schedule. It
applies where each unit fires once and no rule couples units; elsewhere the list schedule is the
plan. Two calls with one seed give the same plan unless time runs out. Compiled with numba.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.makespan.first_schedule import first_schedule
from pearl.solvers.makespan.list_schedule import Place, build_assignment, build_schedule, places_of
from pearl.solvers.model.bounds import ALL, CostBound
from pearl.solvers.model.dag_instance import (
    Arrival,
    DagInstance,
    build_instance,
    least_s,
    makespan_spaces,
    order_by_times,
    start_times_s,
)
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.model.tables import LANE, to_places
from pearl.time_limit import OutOfTimeError, look

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHUNK, FEW = 250, 1000
"""Moves between two checks of the clock, for graphs of up to this many firings; fewer for larger
ones."""

STALE = 2_000
"""Moves without a better schedule after which the search returns to the best and perturbs it."""


STARTING = 0.3
"""Share of the time for list schedules (assumed)."""

MOVES = 60_000
"""Largest number of moves of the method, for each choice of fusions."""


Improve = Callable[
    [DagInstance, Candidate | None, float, float, float], tuple[Candidate | None, float, bool]
]
"""From a schedule of a search space, the makespan of the best plan so far, a lower bound and the
time when to stop: a schedule that is no worse, a lower bound, and whether the search finished."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return the plan of tabu search from the best list schedule, with a bound from paths and work.

    Raises:
        SpecError: a limit does not apply to a makespan.
        InfeasibleError: no plan is within the limits, or none was found.
    """

    def improve(
        it: DagInstance, first: Candidate | None, below: float, floor: float, until: float
    ) -> tuple[Candidate | None, float, bool]:
        lanes = plain_lanes(it)
        if first and lanes:
            first = tabu_search(it, lanes, first, MOVES, floor, until, search.seed)
        return first, floor, True

    return search_each(problem, search, improve)


def search_each(problem: Problem, search: Search, improve: Improve) -> Outcome:
    """Return the best plan over all search spaces, each improved from its first schedule in its
    share of the time."""
    deadline = search.deadline
    spaces = makespan_spaces(problem)
    cases = [build_instance(p) for p in spaces]
    now = time.monotonic()
    until = now + STARTING * (deadline - now)
    starts = [first_schedule(it, problem, search, until) for it in cases]
    candidates = [f for f in starts if f]
    if not candidates:
        raise no_plan_error(problem, search)
    best = min(candidates, key=lambda f: f.cost)
    search.offer(best)
    least, timed_out = ALL, False
    for number, (it, first) in enumerate(zip(cases, starts, strict=True)):
        floor, source = 0.0, "path"
        try:
            floor = longest_s = least_s(it, deadline)
            if floor < best.cost * (1 - SAME):
                left = deadline - time.monotonic()
                until = time.monotonic() + left / (len(spaces) - number)
                found, floor, finished = improve(it, first, best.cost, floor, until)
                timed_out |= not finished
                source = "search" if floor > longest_s else source
                if found and found.cost < best.cost:
                    best = found
                    search.offer(best)
        except OutOfTimeError:
            timed_out = True
        least = min(least, CostBound(floor, source if floor > 0 else ""))
    timed_out = timed_out or time.monotonic() > deadline
    return Outcome(best, min(least.cost, best.cost), timed_out, least.source)


def plain_lanes(it: DagInstance) -> list[tuple[str, int]]:
    """Return device and number of every lane if tabu search supports the search space, else
    nothing.

    Tabu search supports spaces in which each unit fires once and no class, width, limit on lanes
    or pair term couples units. It takes links that pay for copies as never busy.
    """
    p = it.space
    used = [d.name for d in p.costs.platform.devices if any(d.name in row for row in it.devices)]
    lanes = {d: min(p.lanes[d], len(p.options)) for d in used}
    plain = (
        it.unit == tuple(range(len(p.options)))
        and all(len(members) == 1 for members in p.classes)
        and len(plain_widths(p)) == len(used)
        and not p.costs.pair_extra_s
        and not p.lanes_couple
    )
    return [(d, k) for d in lanes for k in range(lanes[d])] if plain else []


def plain_widths(p: SearchSpace) -> list[str]:
    """Return the devices on which every lane may have the width of its widest mode, in a search
    space without a limit on the number of all lanes."""
    used = dict.fromkeys(m.device for o in p.options for m in o)
    widest = {d: max(m.width for o in p.options for m in o if m.device == d) for d in used}
    if p.max_lanes < math.inf:
        return []
    return [
        d
        for d in used
        if widest[d] * min(p.lanes[d], len(p.options)) <= p.costs.platform.device(d).width
    ]


def tabu_search(
    it: DagInstance,
    lanes: list[tuple[str, int]],
    first: Candidate,
    moves: int,
    enough: float,
    deadline: float,
    seed: int,
) -> Candidate:
    """Run tabu search from a schedule to a makespan of `enough` seconds, `moves` or the
    deadline."""
    p, n = it.space, len(it.order)
    s = build_arrays(it, lanes)
    ways = [alternatives(p.options[u], lanes) for u in it.unit]
    taken = places_of(p, first.assignment)
    way = np.array([s.first[v] + ways[v].index(taken[u]) for v, u in enumerate(it.unit)])
    begin = np.array(start_times_s(build_timed_graph(first.assignment), first.ordered.orders)[:n])
    search = TabuSearch(s, copies_of(it), way, begin, seed)
    search.run(moves, deadline, enough * (1 + 1e-9))
    start = [float(t) for t in search.best_start]
    busy = [float(t) for t in s.occupancy[search.best_way]]
    keys = [(start[v], start[v] + busy[v], float(it.place[v])) for v in range(n)]
    places: list[Place] = [(0, 0)] * n
    for v, u in enumerate(it.unit):
        places[u] = ways[v][int(search.best_way[v] - s.first[v])]
    found: Candidate | None = order_by_times(build_assignment(p, places), keys, {})
    if any(link.paid_by == "link" for link in p.costs.platform.links):
        found = build_schedule(it, start, places).to_candidate()
    return min(first, found or first, key=lambda f: f.cost)


class JobShopArrays(NamedTuple):
    """One iteration as arrays.

    Firing v may take the ways first[v] … first[v + 1] − 1; a way has a lane, a device, and latency
    and occupancy in seconds. Arcs into v: into[v] … into[v + 1] − 1, with the sending firing and
    bytes; arcs out of v have the same format. Between two devices, a message takes fixed + bytes ·
    per_byte seconds.
    """

    first: Ints
    lane: Ints
    device: Ints
    latency: Floats
    occupancy: Floats
    into: Ints
    source: Ints
    source_bytes: Floats
    out: Ints
    target: Ints
    target_bytes: Floats
    fixed: Floats
    per_byte: Floats
    lanes: int


class PaidCopies(NamedTuple):
    """Memory of an iteration, and the copies that lanes pay for. No sender if lanes pay for none.

    memory, capacity: bytes of each firing, and of each device. Firing v sends for the senders
    sender_first[v] … sender_first[v + 1] − 1, and the firings `reader` read the messages of a
    sender, with their bytes. up, hop, second: the links of `large.tables.Tables`; paid: whether
    lanes pay for a link.
    """

    memory: Floats
    capacity: Floats
    sender_first: Ints
    read_first: Ints
    reader: Ints
    read_bytes: Floats
    host: int
    up: Ints
    hop: Ints
    second: Ints
    paid: NDArray[np.bool_]
    per_message: Floats
    per_byte: Floats


def copies_of(it: DagInstance) -> PaidCopies:
    """Return memory and copies of an iteration whose units fire once and have a class each."""
    t = to_places(it.space).t
    paid = t.paid == LANE
    senders = np.argsort(t.task_unit, kind="stable") if paid.any() else np.zeros(0, np.int64)
    rows = [t.task_edges[t.task_first[p] : t.task_first[p + 1]] for p in senders]
    edges = np.array([e for row in rows for e in row], np.int64)
    count = np.bincount(t.task_unit[senders], minlength=len(t.item))
    return PaidCopies(
        t.memory[t.item],
        t.capacity,
        np.cumsum([0, *count]).astype(np.int64),
        np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        t.edge_unit[edges],
        t.edge_bytes[edges],
        t.host,
        t.up,
        t.hop,
        t.second,
        paid,
        t.per_message,
        t.per_byte,
    )


def alternatives(modes: Sequence[Mode], lanes: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return the ways of a unit with these modes: index of the mode, and of the lane on its
    device."""
    return [(o, k) for o, m in enumerate(modes) for d, k in lanes if d == m.device]


def build_arrays(it: DagInstance, lanes: Sequence[tuple[str, int]]) -> JobShopArrays:
    """Return the arrays of an iteration whose units fire once. lanes: device and number of each."""
    p = it.space
    names = [d.name for d in p.costs.platform.devices]
    numbers = {lane: k for k, lane in enumerate(lanes)}
    first, found = [0], []
    for u in it.unit:
        for o, k in alternatives(p.options[u], lanes):
            m = p.options[u][o]
            e = m.estimate
            lane = numbers[m.device, k]
            found.append((lane, names.index(m.device), e.latency_s, e.occupancy_s))
        first.append(len(found))
    used = sorted({d for d, _ in lanes}, key=names.index)
    fixed = np.zeros((len(names), len(names)))
    per_byte = np.zeros((len(names), len(names)))
    for here in used:
        for there in used:
            if here != there:
                i, j = names.index(here), names.index(there)
                route = p.costs.platform.route(here, there)
                fixed[i, j] = sum(k.latency_s for k in route)
                per_byte[i, j] = sum(1 / k.bytes_per_s for k in route)
    return JobShopArrays(
        np.array(first, np.int64),
        np.array([w[0] for w in found], np.int64),
        np.array([w[1] for w in found], np.int64),
        np.array([w[2] for w in found], np.float64),
        np.array([w[3] for w in found], np.float64),
        *_arcs(it.before),
        *_arcs(it.after),
        fixed,
        per_byte,
        len(lanes),
    )


def _arcs(table: Sequence[Sequence[Arrival]]) -> tuple[Ints, Ints, Floats]:
    """Return the arcs of the firings in one array: start of each firing's arcs, other ends,
    bytes."""
    return (
        np.cumsum([0, *(len(row) for row in table)]).astype(np.int64),
        np.array([v for row in table for v, _, _ in row], np.int64),
        np.array([b for row in table for _, b, _ in row], np.float64),
    )


class TabuSearch:
    """A search that can be continued. way: the way of each firing. start: its start in seconds."""

    def __init__(
        self, s: JobShopArrays, copies: PaidCopies, way: Ints, start: Floats, seed: int
    ) -> None:
        self.shop, self.copies = s, copies
        n = len(s.first) - 1
        self.way, self.best_way = way.copy(), way.copy()
        self.ahead, self.behind = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        last: dict[int, int] = {}
        for v in np.lexsort((np.arange(n), start + s.occupancy[way], start)):
            k = int(s.lane[way[v]])
            if k in last:
                self.behind[last[k]], self.ahead[v] = v, last[k]
            last[k] = int(v)
        self.best_ahead, self.best_behind = self.ahead.copy(), self.behind.copy()
        self.best_start = np.zeros(n)
        self.value = np.array([np.inf, 0.0])  # best makespan, moves since then
        self.tabu = np.zeros((n, s.lanes), np.int64)
        self.state = np.array([seed * 2 + 1, 0], np.uint64)  # random state; moves made
        self._move(0, 0.0)  # numba takes time to load, and would lose a Ctrl-C amid `run`

    def _move(self, moves: int, enough: float) -> None:
        from pearl.solvers.makespan.tabu_native import search

        search(
            self.shop, self.copies, self.way, self.ahead, self.behind, self.best_way,
            self.best_ahead, self.best_behind, self.best_start, self.value, self.tabu, self.state,
            moves, STALE, enough,
        )  # fmt: skip

    def run(self, moves: int, deadline: float, enough: float) -> float:
        """Make `moves` moves, or stop at the deadline (`time.monotonic()` seconds) or at a makespan
        of `enough` seconds; return the best makespan so far."""
        done = 0
        chunk = max(1, CHUNK * FEW // max(FEW, len(self.shop.first)))
        while done < moves and self.value[0] > enough and time.monotonic() < deadline:
            look()
            self._move(min(chunk, moves - done), enough)
            done += chunk
        return float(self.value[0])
