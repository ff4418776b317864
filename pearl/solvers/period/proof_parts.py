"""Parts of certificates: the relaxation of a case, cycles of its duals, and orders excluded."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from pearl.solvers.model import highs
from pearl.verification.proof import Orders
from pearl.verification.rows import Floats, Mask, SpaceRows

PRICE = 1e4
"""Price, in costs of the plan, of a whole device's memory or width that is missing: it keeps
every relaxation feasible, so that it has multipliers."""

NEAR = 1e-7
"""Share of a way, or multiplier, that counts as none."""

MOST_ORDERS = 5_000
"""Nodes of the tree of one assignment's orders."""


class Relaxation:
    """The linear relaxation of a space in HiGHS, with the ways of one case at a time."""

    def __init__(self, rows: SpaceRows, cost: float, period_s: float) -> None:
        from highspy import HighsModelStatus
        from scipy.sparse import csr_array

        self.rows, x = rows, rows.x
        n, ways = rows.count, len(rows.ways)
        self.period = n
        nodes = len(x.nodes)
        elastic = [r for r, row in enumerate(rows.rows) if row.constant < 0]
        columns = n + 1 + nodes + len(elastic)
        timed = np.array([row.ends is not None or row.tokens != 0 for row in rows.rows])
        self.unit = np.where(timed, period_s, 1.0)
        if rows.most_w < math.inf:
            self.unit[rows.power] = self.joules = max(rows.dynamic_j.max(), 1e-30)
        self.cost, self.period_s = cost, period_s
        matrix = rows.matrix  # its rows are the columns here
        owner = np.repeat(np.arange(n), np.diff(matrix.indptr))
        parts = matrix.indices, owner, matrix.data / self.unit[matrix.indices]
        entry: list[list[Any]] = [part.tolist() for part in parts]

        def add(r: int, c: int, v: float) -> None:
            for part, value in zip(entry, (r, c, v), strict=True):
                part.append(value)

        for r, row in enumerate(rows.rows):
            if row.tokens:
                add(r, n, -row.tokens)
            if row.ends and row.ends[0] != row.ends[1]:
                add(r, n + 1 + row.ends[0], 1.0)
                add(r, n + 1 + row.ends[1], -1.0)
        for k, r in enumerate(elastic):
            add(r, n + 1 + nodes + k, -1.0)
        constant = rows.constant / self.unit
        low: list[float] = np.where(rows.equal, -constant, -math.inf).tolist()
        high: list[float] = (-constant).tolist()
        if rows.most_w < math.inf:
            add(rows.power, n, self._power(rows.every))
        places: dict[tuple[int, str], list[int]] = {}
        for c, (u, m, _) in enumerate(rows.ways):
            add(len(low) + u, c, 1.0)
            places.setdefault((u, m.device), []).append(c)
        pairs = [(members[0], u) for members in x.classes for u in members[1:]]
        begin = len(low) + len(x.units)
        for r, ((one, other), d) in enumerate(product(pairs, rows.names), begin):
            for u, sign in ((one, 1.0), (other, -1.0)):
                for c in places.get((u, d), ()):
                    add(r, c, sign)
        sums = [1.0] * len(x.units) + [0.0] * (len(pairs) * len(rows.names))
        low, high = low + sums, high + sums
        objective = np.zeros(columns)
        if rows.energy:
            objective[:n] = rows.dynamic_j / cost
        objective[n] = self._weight(rows.every)
        objective[n + 1 + nodes :] = PRICE
        lower, upper = np.zeros(columns), np.ones(columns)
        upper[n:] = math.inf
        lower[n + 1 : n + 1 + nodes] = -math.inf
        if nodes:
            lower[n + 1] = upper[n + 1] = 0.0
        in_row, in_column, value = entry
        program = highs.LinearProgram(
            csr_array((value, (in_row, in_column)), shape=(len(low), columns)),
            objective,
            lower,
            upper,
            np.array(low),
            np.array(high),
            np.zeros(columns, np.int32),
            math.inf,
            0.0,
            "simplex",
        )
        h = self.highs = highs.load(program)
        h.setOptionValue("presolve", "off")
        self.ways = np.arange(ways, dtype=np.int32)
        self.optimal = HighsModelStatus.kOptimal

    def solve(self, open_: Mask) -> tuple[Floats, Floats] | None:
        """Return the shares of the ways and the multipliers of the rows."""
        rows, h = self.rows, self.highs
        h.changeColsBounds(len(self.ways), self.ways, np.zeros(len(open_)), open_.astype(float))
        if rows.energy:
            h.changeColCost(self.period, self._weight(open_))
        if rows.most_w < math.inf:
            h.changeCoeff(rows.power, self.period, self._power(open_))
        h.run()
        if h.getModelStatus() != self.optimal:
            return None
        solution = h.getSolution()
        y = -np.array(solution.row_dual)[: len(rows.rows)]
        y[abs(y) < NEAR / 100] = 0.0
        y = np.where(rows.equal, y, np.maximum(y, 0.0)) * self.cost / self.unit
        return np.array(solution.col_value)[: len(open_)], y

    def _weight(self, open_: Mask) -> float:
        """Cost of a period: its idle joules, or itself."""
        rows = self.rows
        return float(rows.idle_w(open_) * self.period_s / self.cost) if rows.energy else 1.0

    def _power(self, open_: Mask) -> float:
        """Coefficient of the period in the row of power."""
        return float(-(self.rows.most_w - self.rows.idle_w(open_)) * self.period_s / self.joules)


def peel(arcs: Sequence[tuple[int, int, int]], flow: Floats) -> list[tuple[tuple[int, ...], float]]:
    """Return closed cycles of arcs (row, from, to) whose sum is the flow, but for rounding."""
    left = {r: float(flow[r]) for r, _, _ in arcs}
    small = NEAR / 10 * max(left.values(), default=0.0)
    out: dict[int, list[tuple[int, int]]] = {}
    for r, s, d in arcs:
        out.setdefault(s, []).append((r, d))
    found: dict[tuple[int, ...], float] = {}
    path: list[tuple[int, int]] = []
    seen: dict[int, int] = {}
    for root in list(out):
        here = root
        while True:
            if here in seen:
                cycle = [r for r, _ in path[seen[here] :]]
                times = min(left[r] for r in cycle)
                found[tuple(cycle)] = found.get(tuple(cycle), 0.0) + times
                for r in cycle:
                    left[r] -= times
                path, seen, here = [], {}, root
            ways = [(left[r], r, d) for r, d in out.get(here, ()) if left[r] > small]
            if ways:
                seen[here] = len(path)
                _, r, d = max(ways)
                path.append((r, here))
                here = d
            elif path:
                r, before = path.pop()
                left[r] = 0.0
                here = before
                del seen[here]
            else:
                break
    return list(found.items())


def exclude_orders(first: Orders, until: float) -> list[list[Any]] | None:
    """Return the nodes of a tree that excludes all orders of an assignment; None if a schedule
    below the bound exists, or if time runs out."""
    nodes: list[list[Any]] = []
    stack: list[tuple[Orders, list[float]]] = [(first, [0.0] * len(first.timed.names))]
    while stack:
        if time.monotonic() > until or len(nodes) > MOST_ORDERS:
            return None
        state, start = stack.pop()
        start = list(start)
        cycle = _late_cycle(state, start)
        if cycle is not None:
            nodes.append(["cycle", cycle])
            continue
        pair = _overlap(state, start)
        if pair is None:
            return None
        i, j, k = pair
        if state.parts[i] != state.parts[j]:
            nodes.append(["anchor", i, j])
            stack.append((state.order(i, j, 0).order(j, i, 1), start))
        else:
            nodes.append(["order", i, j, k])
            stack += [(state.order(j, i, -k), start), (state.order(i, j, k), start)]
    return nodes


def _late_cycle(state: Orders, start: list[float]) -> list[int] | None:
    """Return the arcs of a cycle that takes longer than its tokens allow; else None, and `start`
    keeps every arc."""
    n, period = len(start), state.least_s
    if period == math.inf:
        period = 1e30
    small = 1e-12 * period
    into = [-1] * n
    arcs = [(s, d, w - m * period) for s, d, w, m in state.arcs]
    for _ in range(n + 2):
        changed = -1
        for number, (s, d, w) in enumerate(arcs):
            if start[s] + w > start[d] + small:
                start[d], into[d], changed = start[s] + w, number, d
        if changed < 0:
            return None
    here = changed
    for _ in range(n):
        here = arcs[into[here]][0]
    cycle, there = [into[here]], arcs[into[here]][0]
    while there != here:
        cycle.append(into[there])
        there = arcs[into[there]][0]
    return cycle[::-1]


def _overlap(state: Orders, start: list[float]) -> tuple[int, int, int] | None:
    """Return two firings of a lane that overlap most, and the tokens that both orders break."""
    period, best, found = state.least_s, 1e-9 * state.least_s, None
    for members in state.timed.lanes.values():
        for n, i in enumerate(members):
            for j in members[:n]:
                took_i, took_j = state.timed.occupancy[i], state.timed.occupancy[j]
                ahead = start[i] - start[j]
                k = math.floor((ahead + took_i) / period)
                late = min(ahead + took_i - k * period, took_j - ahead + k * period)
                if late > best:
                    best, found = late, (i, j, k)
    return found
