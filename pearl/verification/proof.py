"""The bound of a plan: a tree of cases for each space, each case closed by rows or by cycles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np

from pearl.planning.problem import Problem
from pearl.verification.model import (
    Arc,
    RefusedError,
    Timed,
    require,
    spaces,
    strong_parts,
    timed_graph,
)
from pearl.verification.rows import Floats, Mask, SpaceRows
from pearl.verification.value import check_places


@dataclass(frozen=True)
class Orders:
    """The orders of one assignment that are still possible: arcs that all of them have.

    least_s: the period that is to be excluded below. parts: the part of each node; between two
    parts no arc is counted, so a whole number of periods between them is free.
    """

    timed: Timed
    least_s: float
    arcs: tuple[Arc, ...]
    parts: tuple[int, ...]

    def order(self, i: int, j: int, tokens: int) -> Orders:
        """Return the orders in which j starts when i has left the lane, so many periods later."""
        here, there = self.parts[i], self.parts[j]
        parts = tuple(here if p == there else p for p in self.parts)
        arcs = (*self.arcs, (i, j, self.timed.occupancy[i], tokens))
        return replace(self, arcs=arcs, parts=parts)

    def share_lane(self, i: int, j: int) -> bool:
        return i != j and any(i in lane and j in lane for lane in self.timed.lanes.values())


def orders_of(rows: SpaceRows, open_: Mask, bound: float) -> Orders | None:
    """Return the orders of the one assignment left; None if it breaks a rule, or if no order of it
    costs less than the bound.

    Raises:
        RefusedError: several are left.
    """
    x, left = rows.x, [rows.ways[c] for c in np.flatnonzero(open_)]
    require([u for u, _, _ in left] == list(range(len(x.units))), "orders", "several ways are left")
    modes, lanes = [m for _, m, _ in left], [k for _, _, k in left]
    try:
        check_places(x, modes, lanes, [e.least_capacity for e in x.bare.edges])
        timed = timed_graph(x, modes, lanes)
    except RefusedError:
        return None
    idle, joules = rows.idle_w(open_), timed.dynamic_j
    least = bound
    if rows.energy:
        least = (bound - joules) / idle if idle else math.inf if joules < bound else 0.0
    spare = rows.most_w - idle
    paced = 0.0 if rows.most_w == math.inf else joules / spare if spare > 0 else math.inf
    least = min(least, rows.longest * (1 + 1e-6))
    if (
        max(paced, *(math.fsum(timed.occupancy[i] for i in k) for k in timed.lanes.values()))
        >= least
    ):
        return None
    turns = []
    for members in timed.lanes.values():
        calls: dict[str, list[int]] = {}
        for i in members:
            calls.setdefault(timed.names[i][0], []).append(i)
        for call in calls.values():
            pairs = zip(call, [*call[1:], call[0]], strict=True)
            turns += [(i, j, timed.occupancy[i], int(j == call[0])) for i, j in pairs]
    arcs = [*timed.arcs, *turns]
    parts = strong_parts(len(timed.names), [(s, d) for s, d, _, _ in arcs])
    inner = tuple(a for a in arcs if parts[a[0]] == parts[a[1]])
    return Orders(timed, least, inner, tuple(parts))


def multipliers(rows: SpaceRows, flat: Sequence[Any], cycles: Sequence[Any], known: Any) -> Floats:
    """Return a multiplier of each row, from `[row, multiplier, …]` and `[cycle, multiplier, …]`."""
    y = np.zeros(len(rows.rows))
    for r, times in zip(map(index, flat[::2]), flat[1::2], strict=True):
        row = rows.rows[r]
        fits = math.isfinite(times) and (times >= 0 or row.equal) and row.ends is None
        require(fits and r >= 0, row.name, f"its multiplier is {times}")
        y[r] += times
    for c, times in zip(map(index, cycles[::2]), cycles[1::2], strict=True):
        require(0 <= times < math.inf and c >= 0, "cycle", f"its multiplier is {times}")
        np.add.at(y, known[c], times)
    return y


def check_cycle(rows: SpaceRows, cycle: Sequence[int]) -> list[int]:
    """Check that the arcs of a cycle close it, so that the starts cancel."""
    ends = [rows.rows[r].ends for r in cycle if r >= 0]
    closed = bool(ends) and all(
        one is not None and other is not None and one[1] == other[0]
        for one, other in zip(ends, [*ends[1:], ends[0]], strict=True)
    )
    require(closed and len(ends) == len(cycle), "cycle", "it is not closed")
    return list(cycle)


def check_bound(proof: Mapping[str, Any], problem: Problem) -> float:
    """Return the bound of a proof: no plan of the problem costs less, in seconds or joules.

    Raises:
        RefusedError: the proof does not hold.
    """
    bound, trees = float(proof["bound"]), list(proof["trees"])
    require(0 <= bound < math.inf, "bound", f"it is {bound}")
    for x in spaces(problem):
        rows = None if x.deadlocked or not all(x.modes) else SpaceRows(x, problem.objective)
        if rows is None or not rows.every.any():
            continue
        require(bool(trees), "space", f"no tree for {x.units}")
        tree = trees.pop(0)
        check_tree(rows, tree["nodes"], [check_cycle(rows, c) for c in tree["cycles"]], bound)
    require(not trees, "space", "there are more trees than spaces")
    return bound


def check_tree(rows: SpaceRows, nodes: Sequence[Any], cycles: Any, bound: float) -> None:
    """Check one tree, its nodes listed from the root, each before its branches."""
    left: list[Mask | Orders] = [rows.every]
    known: list[Floats] = []
    for kind, *args in nodes:
        require(bool(left), "tree", "it has more nodes than branches")
        state = left.pop()
        if isinstance(state, Orders):
            left += reversed(_check_order(state, kind, args))
        elif kind == "cut":
            parts = [np.isin(np.arange(len(state)), part) for part in args[1]]
            whole = state & (rows.unit == args[0])
            require(not (whole & ~np.logical_or.reduce(parts)).any(), "branch", "a way is missing")
            left += [rows.narrow(state & ((rows.unit != args[0]) | p)) for p in reversed(parts)]
        elif kind == "orders":
            orders = orders_of(rows, state, bound)
            left += [orders] if orders else []
        elif kind in ("rows", "as"):
            if kind == "rows":
                known.append(multipliers(rows, args[0], args[1], cycles))
            proved = rows.least_cost(state, known[-1] if kind == "rows" else known[args[0]])
            require(proved >= bound, "rows", f"they prove {proved:.9g}, not {bound:.9g}")
        else:
            require(False, "tree", f"unknown node {kind!r}")
    require(not left, "tree", f"{len(left)} branches are missing")


def _check_order(state: Orders, kind: str, args: Sequence[Any]) -> list[Orders]:
    """Check a node below an assignment; return its branches."""
    if kind == "cycle":
        arcs = [state.arcs[a] for a in args[0] if a >= 0]
        closed = all(a[1] == b[0] for a, b in zip(arcs, [*arcs[1:], *arcs[:1]], strict=True))
        require(closed and len(arcs) == len(args[0]) > 0, "cycle", "it is not closed")
        seconds, tokens = math.fsum(a[2] for a in arcs), sum(a[3] for a in arcs)
        late = seconds >= state.least_s * tokens and (seconds > 0 or tokens != 0)
        require(late, "cycle", f"{seconds:.9g} s on {tokens} tokens")
        return []
    i, j = args[0], args[1]
    require(state.share_lane(i, j), "order", f"{i} and {j} are not on one lane")
    if kind == "order":
        tokens = index(args[2])  # a part of a period would leave orders out
        return [state.order(i, j, tokens), state.order(j, i, -tokens)]
    require(kind == "anchor" and state.parts[i] != state.parts[j], "anchor", f"{i} and {j}")
    return [state.order(i, j, 0).order(j, i, 1)]
