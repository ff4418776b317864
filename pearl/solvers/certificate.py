"""Certificates: proofs of a plan's bound that `pearl.verification` checks.

Best-first branch and bound over the verifier's own rows, from the plan's cost. HiGHS solves the
relaxation of each case (dual simplex, warm from the case before), and its duals are the multipliers
of the proof. A case is closed only if the verifier's own arithmetic closes it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.problem_files import digest
from pearl.solvers.period.proof_parts import NEAR, Relaxation, exclude_orders, peel
from pearl.verification import Checked, check_plan
from pearl.verification.model import Space, spaces
from pearl.verification.proof import check_cycle, check_tree, orders_of
from pearl.verification.rows import Floats, Mask, SpaceRows

SAME = 1e-6
"""Relative difference of cost and bound at which a plan counts as optimal, as in plans."""

MOST_COLUMNS = 20_000
"""Columns of a space above which no certificate is tried (assumed: a relaxation takes a second)."""

QUICK, SPACE = 6_000, 500
"""Work for the certificate that every solve tries, about 20 to 40 ms, and work of making the rows
of a space. It is counted and not timed, so that equal problems give equal plans."""

RECENT = 6
"""Multipliers tried for a case before its relaxation is solved."""


@dataclass(eq=False)
class Multipliers:
    """Multipliers of rows and of closed cycles of arcs, and the sum of both by row."""

    rows: list[float]
    cycles: list[tuple[tuple[int, ...], float]]
    y: Floats


@dataclass(eq=False)
class ProofCase:
    """A node of the tree: the ways that it leaves.

    bound: nothing below costs less, by `by`. unit, parts, children: of its branch. orders: the
    nodes below an assignment whose orders are excluded. share: of each way in the relaxation.
    """

    open_: Mask
    bound: float
    by: Multipliers
    share: Floats | None = None
    unit: int = -1
    parts: list[list[int]] = field(default_factory=list)
    children: list[ProofCase] = field(default_factory=list)
    orders: list[list[Any]] | None = None


class ProofTree:
    """The proof of one space, grown from its root until every case is closed."""

    def __init__(self, rows: SpaceRows, target: float, cost: float, period_s: float, until: float):
        self.rows, self.target, self.until = rows, target, until
        self.relaxation = Relaxation(rows, cost, period_s)
        self.recent: deque[Multipliers] = deque(maxlen=RECENT)
        nothing = Multipliers([], [], np.zeros(len(rows.rows)))
        self.root = self._case(rows.every, ProofCase(rows.every, 0.0, nothing))

    def _case(self, open_: Mask, parent: ProofCase) -> ProofCase:
        """Return a case with the best bound known, by old multipliers if they close it."""
        rows, best = self.rows, (parent.bound, parent.by)
        for by in dict.fromkeys([parent.by, *reversed(self.recent)]):
            if (bound := rows.least_cost(open_, by.y)) >= self.target:
                return ProofCase(open_, bound, by)
            best = max(best, (bound, by), key=lambda pair: pair[0])
        answer = self.relaxation.solve(open_)
        if answer is None:
            return ProofCase(open_, rows.least_cost(open_, best[1].y), best[1])
        share, exact = answer
        for digits in (4, 7, 17):
            by = self._rounded(open_, exact, digits)
            bound = rows.least_cost(open_, by.y)
            if bound >= self.target:
                self.recent.append(by)
                return ProofCase(open_, bound, by)
        if bound <= best[0]:
            bound, by = rows.least_cost(open_, best[1].y), best[1]
        return ProofCase(open_, bound, by, share)

    def _rounded(self, open_: Mask, exact: Floats, digits: int) -> Multipliers:
        """Multipliers of few digits, whose arcs are closed cycles and whose periods cost no more
        than the period does."""
        rows = self.rows
        arcs = [(r, *row.ends) for r, row in enumerate(rows.rows) if row.ends and exact[r] > 0]
        cycles = peel(arcs, exact)
        tokens = rows.tokens.copy()
        if rows.most_w < math.inf:
            tokens[rows.power] = rows.most_w - rows.idle_w(open_)
        weight = rows.idle_w(open_) if rows.energy else 1.0
        plain = [r for r in np.flatnonzero(exact).tolist() if not rows.rows[r].ends]
        taken = sum(exact[r] * tokens[r] for r in plain)
        taken += sum(times * sum(tokens[r] for r in cycle) for cycle, times in cycles)
        spare = 10.0**-digits if digits < 17 else 1e-12
        factor = weight * (1 - spare) / taken if taken > weight * (1 - spare) else 1.0
        flat: list[float] = []
        y = np.zeros(len(rows.rows))
        for r in plain:
            times = exact[r] * (factor if tokens[r] > 0 else 1.0)
            times = float(f"{times:.{digits}g}")
            flat += [r, times]
            y[r] += times
        kept = []
        for cycle, times in cycles:
            times = float(f"{times * factor:.{digits}g}")
            kept.append((cycle, times))
            np.add.at(y, list(cycle), times)
        return Multipliers(flat, kept, y)

    def grow(self, case: ProofCase) -> list[ProofCase] | None:
        """Branch a case and return the branches; None if it cannot be closed."""
        rows = self.rows
        units = [np.flatnonzero(case.open_ & (rows.unit == u)) for u in range(len(rows.x.units))]
        wide = [u for u, ways in enumerate(units) if len(ways) > 1]
        if not wide:
            orders = orders_of(rows, case.open_, self.target)
            case.orders = [] if orders is None else exclude_orders(orders, self.until)
            return None if case.orders is None else []
        share = case.share if case.share is not None else np.zeros(len(case.open_))
        case.unit, case.parts = self._branch(units, wide, share)
        for part in case.parts:
            left = case.open_ & (rows.unit != case.unit)
            left[part] = True
            case.children.append(self._case(rows.narrow(left), case))
        return case.children

    def _branch(
        self, units: Sequence[NDArray[np.int64]], wide: Sequence[int], share: Floats
    ) -> tuple[int, list[list[int]]]:
        """Return a unit and the parts of its ways: a device and the others, of the unit whose
        device is least certain; or a way and the others, if all devices are certain."""
        rows = self.rows
        choices = []
        for u in wide:
            by_device = np.bincount(rows.device[units[u]], share[units[u]], len(rows.names))
            several = len(set(rows.device[units[u]].tolist())) > 1
            top = float(by_device.max()) if several else float(share[units[u]].max())
            whole = top > 1 - NEAR
            choices.append((whole, not several, top, u))
        _, one_device, _, u = min(choices)
        ways = units[u]
        if one_device:
            best = ways[np.argmax(share[ways])]
            inside = ways == best
        else:
            by_device = np.bincount(rows.device[ways], share[ways], len(rows.names))
            inside = rows.device[ways] == rows.device[ways[np.argmax(by_device[rows.device[ways]])]]
        return u, [ways[inside].tolist(), ways[~inside].tolist()]

    def nodes(self, bound: float) -> dict[str, Any]:
        """Return the tree as `proof.check_tree` reads it."""
        cycles: dict[tuple[int, ...], int] = {}
        known: dict[int, int] = {}
        nodes: list[list[Any]] = []
        stack = [self.root]
        while stack:
            case = stack.pop()
            if case.children:
                nodes.append(["cut", case.unit, case.parts])
                stack += reversed(case.children)
            elif case.orders is not None:
                nodes.append(["orders"])
                if orders_of(self.rows, case.open_, bound) is not None:
                    nodes += case.orders
            elif id(case.by) in known:
                nodes.append(["as", known[id(case.by)]])
            else:
                known[id(case.by)] = len(known)
                flat: list[float] = []
                for cycle, times in case.by.cycles:
                    flat += [cycles.setdefault(cycle, len(cycles)), times]
                nodes.append(["rows", case.by.rows, flat])
        return {"cycles": [list(c) for c in cycles], "nodes": nodes}


def certify(
    plan: Plan,
    *,
    seconds: float = math.inf,
    work: float = math.inf,
    checked: Checked | None = None,
) -> Plan:
    """Return the plan with a certificate, as far as one is found; `pearl.verify` checks it.

    seconds: at most. work: at most, in rows and columns of all relaxations; a plan of which no
        proof of optimality is found within `work` stays as it is.
    checked: what `check_plan` found of the plan, if it was asked before.
    """
    p, quick = plan.problem, work < math.inf
    if p is None or plan.regret is not None or plan.objective == "makespan":
        return plan
    if _arcs(p.graph) > work:
        return plan
    problem = replace(p, objective=plan.objective)
    checked = checked or check_plan(plan, problem)
    proof = prove(problem, checked.cost, plan.period_s, seconds=seconds, work=work)
    bound = proof["bound"] if proof is not None else 0.0
    proved = bound >= checked.cost * (1 - 1.005 * SAME)
    if quick and not proved:
        return plan
    certificate = {"sha256": digest(problem), "start": checked.starts, **(proof or {})}
    return replace(
        plan,
        certified="optimal" if proved else "gap" if bound else "",
        certified_bound=(problem.graph.env_steps or 1) / bound if bound else None,
        certificate=certificate,
    )


def prove(
    problem: Problem,
    cost: float,
    period_s: float,
    *,
    seconds: float = math.inf,
    work: float = math.inf,
) -> dict[str, Any] | None:
    """Return a proof that no plan costs less than about `cost`, or the best bound found in time;
    None if nothing above 0 is found.

    cost: of the best plan known, in seconds or joules. period_s: its period. seconds, work: as of
    `certify`.
    """
    if problem.objective == "makespan" or not 0 < cost < math.inf:
        return None
    until, target = time.monotonic() + seconds, cost * (1 - SAME)
    trees: list[ProofTree] = []
    for x in spaces(problem):
        if time.monotonic() > until:
            return None
        if x.deadlocked or not all(x.modes):
            continue
        work -= _size(x) + _arcs(x.problem.graph) + SPACE
        if _size(x) > MOST_COLUMNS or work < 0:
            return None
        rows = SpaceRows(x, problem.objective)
        if rows.every.any():
            try:
                trees.append(ProofTree(rows, target, cost, period_s, until))
            except ValueError:  # times so far apart that a quotient of them is not finite
                return None
    number = count()
    heap = [(tree.root.bound, next(number), tree, tree.root) for tree in trees]
    heapq.heapify(heap)
    bound = target
    while heap and heap[0][0] < min(target, bound) and time.monotonic() < until and work > 0:
        least, _, tree, case = heapq.heappop(heap)
        work -= tree.rows.count + len(tree.rows.rows)
        branches = tree.grow(case)
        if branches is None:
            bound = min(bound, least)
        for each in branches or ():
            heapq.heappush(heap, (each.bound, next(number), tree, each))
    bound = min(bound, heap[0][0] if heap else target)
    if not bound > 0:
        return None
    proofs = [tree.nodes(bound) for tree in trees]
    for tree, proof in zip(trees, proofs, strict=True):
        cycles = [check_cycle(tree.rows, cycle) for cycle in proof["cycles"]]
        check_tree(tree.rows, proof["nodes"], cycles, bound)
    return {"bound": bound, "trees": proofs}


def _arcs(graph: TaskGraph) -> int:
    """About the number of firings and arcs of an iteration."""
    q = graph.repetition
    return sum(q.values()) + sum(max(q[e.src], q[e.dst]) for e in graph.edges)


def _size(x: Space) -> int:
    """About the number of columns of a space."""
    places = [len({m.device for m in modes}) for modes in x.modes]
    ends = {(x.unit_of[e.src], x.unit_of[e.dst]) for e in x.problem.graph.edges}
    return sum(map(len, x.modes)) + sum(places[u] * places[w] for u, w in ends if u != w)
