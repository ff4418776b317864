"""Tabu search for makespan: one firing at a time to another lane or position in its lane.

Mastrolilli and Gambardella 2000, "Effective neighbourhood functions for the flexible job shop
problem", Journal of Scheduling 3(1), with transfers between devices. A firing on a critical path is
removed and inserted where the longest path through it is shortest; heads and tails of the graph
without the firing give the length of the path. Compiled with numba: imported on use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.planning.costs import Mode
from pearl.solvers.methods.tabu_native import search
from pearl.solvers.model.dag_instance import Arrival, DagInstance
from pearl.time_limit import look

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHUNK, FEW = 250, 1000
"""Moves between two checks of the clock, for graphs of up to this many firings; fewer for larger
ones."""

STALE = 2_000
"""Moves without a better schedule after which the search returns to the best and perturbs it."""


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

    def __init__(self, s: JobShopArrays, way: Ints, start: Floats, seed: int) -> None:
        self.shop = s
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

    def run(self, moves: int, deadline: float, enough: float) -> float:
        """Make `moves` moves, or stop at the deadline (`time.monotonic()` seconds) or at a makespan
        of `enough` seconds; return the best makespan so far."""
        s = self.shop
        done = 0
        chunk = max(1, CHUNK * FEW // max(FEW, len(s.first)))
        while done < moves and self.value[0] > enough and time.monotonic() < deadline:
            look()
            search(
                s, self.way, self.ahead, self.behind, self.best_way, self.best_ahead,
                self.best_behind, self.best_start, self.value, self.tabu, self.state,
                min(chunk, moves - done), STALE, enough,
            )  # fmt: skip
            done += chunk
        return float(self.value[0])
