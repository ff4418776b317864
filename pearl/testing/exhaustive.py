"""Every assignment and every order: the oracle in tests of methods, `pearl.testing.exhaustive` as
the method of `solve`.

The method enumerates replicas, fusions, slack of every edge from 0 to its limit, modes and lanes.
Then, from the least order bound upwards, it enumerates all orders with offsets of lanes with at
most 3 firings, until the bound of the remaining assignments is no better than the best plan. For
longer lanes, it searches like `orders`, whose bound may stay below the value. Among plans of the
same cost, it returns one of least slack.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph
from pearl.solvers.infeasible.iis import find_conflict, no_plan_error
from pearl.solvers.methods.enumeration import PLANS, assignments, every_space
from pearl.solvers.model.dag_instance import ends_s, list_by_keys, makespan_spaces
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.orders.lane_sequencing import (
    FAR,
    OrderResult,
    best_orders,
    token_distances,
)
from pearl.solvers.orders.list_orders import ring_period

FIRINGS = 3
"""Largest number of firings of a lane for which every order is tried."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Find the best plan by enumeration. `seed` has no effect.

    Raises:
        SpecError: there are more than PLANS assignments; the text gives the number.
        InfeasibleError: no plan is within the limits.
    """
    deadline = search.deadline
    if problem.objective == "makespan":
        return _soonest(problem, search)
    spaces = every_space(problem)
    ranked = []
    late = False
    for number, assignment in enumerate(assignments(spaces)):
        if number % 64 == 0 and time.monotonic() > deadline:
            late = True
            break
        bound = build_timed_graph(assignment).order_bound_s
        cost, _ = cost_of(problem, assignment, bound)
        if cost < math.inf:
            ranked.append((cost, number, assignment))
    ranked.sort(key=lambda r: r[:2])
    best: Candidate | None = search.start
    loose = 0.0 if late else math.inf
    for least, _, assignment in ranked:
        if best and least >= best.cost * (1 - SAME):
            break
        if time.monotonic() > deadline:
            late, loose = True, min(loose, least)
            break
        timed = build_timed_graph(assignment)
        ordered = _every_order(timed) or best_orders(timed, deadline=deadline)
        cost, paced = cost_of(problem, assignment, ordered.period_s)
        proven, _ = cost_of(problem, assignment, ordered.bound_s)
        if proven < cost:
            loose = min(loose, proven)
        if cost < (best.cost if best else math.inf):
            best = Candidate(assignment, ordered, paced, cost)
    if best is None and late:
        raise no_plan_error(problem, search)
    if best is None:
        raise find_conflict(problem, deadline)
    spare = [
        (_slack(a), number, a)
        for least, number, a in ranked
        if least <= best.cost * (1 + SAME) and _slack(a) < _slack(best.assignment)
    ]
    for _, _, assignment in sorted(spare, key=lambda r: r[:2]):
        if time.monotonic() > deadline:
            break
        timed = build_timed_graph(assignment)
        ordered = _every_order(timed) or best_orders(timed, deadline=deadline)
        cost, paced = cost_of(problem, assignment, ordered.period_s)
        if cost <= best.cost * (1 + SAME):
            best = Candidate(assignment, ordered, paced, cost)
            break
    return Outcome(best, min(best.cost, loose), late)


def _soonest(problem: Problem, search: Search) -> Outcome:
    """Return the plan whose first iteration ends first, by enumeration. Orders without offsets are
    enough, because offsets change nothing in the first iteration."""
    deadline = search.deadline
    makespan_spaces(problem)  # raises its errors
    whole = replace(problem, limits=problem.limits.without_slack())
    ranked = []
    for number, a in enumerate(assignments(every_space(whole))):
        timed = build_timed_graph(a)
        start = _starts(timed, {})
        firings = range(len(a.expansion.nodes))
        lanes = [a.lane(u) for u in range(len(a.modes))]
        loads = [timed.loads_s[lane] for lane in lanes]
        assert start is not None
        ranked.append((max(*(start[i] + timed.latency_s[i] for i in firings), *loads), number, a))
        if number % 64 == 0 and time.monotonic() > deadline:
            break
    late = time.monotonic() > deadline
    best: Candidate | None = search.start
    loose = 0.0 if late else math.inf
    for least, _, a in sorted(ranked, key=lambda r: r[:2]):
        if best and least >= best.cost * (1 - SAME):
            break
        if best and time.monotonic() > deadline:
            late, loose = True, min(loose, least)
            break
        found, proven = _soonest_order(a, least)
        loose = loose if proven else min(loose, least)
        if found and found.cost < (best.cost if best else math.inf):
            best = found
    if best is None and late:
        raise no_plan_error(problem, search)
    if best is None:
        raise find_conflict(problem, deadline)
    return Outcome(best, min(best.cost, loose), late)


def _soonest_order(a: Assignment, least: float) -> tuple[Candidate | None, bool]:
    """Return the best of all orders of an assignment, and whether all were tried. If they are too
    many, the order is that in which firings could start."""
    timed = build_timed_graph(a)
    rings = [list(itertools.permutations(m)) for m in timed.lanes.values() if len(m) <= FIRINGS]
    every = len(rings) == len(timed.lanes) and math.prod(map(len, rings)) <= PLANS
    if not every:
        free = _starts(timed, {}) or []
        keys = [(t, t, float(i)) for i, t in enumerate(free)]
        listed, start = list_by_keys(timed, keys)
        return _timed(timed, listed, start), False
    best: Candidate | None = None
    for choice in itertools.product(*rings):
        orders = dict(zip(timed.lanes, (tuple((i, 0) for i in r) for r in choice), strict=True))
        if any(not _in_turn(timed, r) for r in choice):
            continue
        found_start = _starts(timed, orders)
        if found_start is not None:
            if best is None or ends_s(timed, found_start) < best.cost:
                best = _timed(timed, orders, found_start)
            if best.cost <= least * (1 + 1e-12):
                break
    return best, True


def _timed(timed: TimedGraph, orders: Orders, start: Sequence[float]) -> Candidate:
    period = ring_period(timed, orders)
    ordered = OrderResult(orders, period, timed.order_bound_s)
    return Candidate(timed.assignment, ordered, period, ends_s(timed, start))


def _in_turn(timed: TimedGraph, ring: Sequence[int]) -> bool:
    """Return whether each task's firings are in their own order; other orders never help."""
    firings: dict[str, list[int]] = {}
    for i in ring:
        firings.setdefault(timed.names[i][0], []).append(timed.names[i][1])
    return all(f == sorted(f) for f in firings.values())


def _starts(timed: TimedGraph, orders: Orders) -> list[float] | None:
    """Return the start of each node of the first iteration; None if the orders deadlock."""
    n = len(timed.names)
    arcs = [(s, d, w) for s, d, w, m in timed.arcs if m == 0]
    for ring in orders.values():
        arcs += [(a, b, timed.occupancy_s[a]) for (a, _), (b, _) in itertools.pairwise(ring)]
    out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    waits = [0] * n
    for s, d, w in arcs:
        out[s].append((d, w))
        waits[d] += 1
    start = [0.0] * n
    sequence = [i for i in range(n) if waits[i] == 0]
    for i in sequence:
        for d, w in out[i]:
            start[d] = max(start[d], start[i] + w)
            waits[d] -= 1
            if waits[d] == 0:
                sequence.append(d)
    return start if len(sequence) == n else None


def _slack(a: Assignment) -> int:
    return sum(e.slack for e in a.expansion.graph.edges if e.limit)


def _every_order(timed: TimedGraph) -> OrderResult | None:
    """Return the best of all orders; None if a lane has more than FIRINGS, or for too many
    orders."""
    if max(len(members) for members in timed.lanes.values()) > FIRINGS:
        return None
    distance = token_distances(len(timed.names), timed.arcs)
    bound = timed.order_bound_s
    reach = 2 + math.ceil(sum(a[2] for a in timed.arcs) / bound) if bound > 0 else 2
    rings = []
    for members in timed.lanes.values():
        rows = []
        for order in itertools.permutations(members[1:]):
            ahead = []
            for i in order:  # the paths between two firings bound the offset between them
                back, forth = int(distance[i, members[0]]), int(distance[members[0], i])
                low = 1 - back if back < FAR else (forth - reach if forth < FAR else -reach)
                high = forth if forth < FAR else low + reach
                ahead.append(range(low, high + 1))
            for offsets in itertools.product(*ahead):
                ring = _listed(timed, ((members[0], 0), *zip(order, offsets, strict=True)))
                if ring:
                    rows.append(ring)
        rings.append(rows)
    if math.prod(len(r) for r in rings) > PLANS:
        return None
    best: Orders = {}
    period = math.inf
    for choice in itertools.product(*rings):
        orders = dict(zip(timed.lanes, choice, strict=True))
        value = ring_period(timed, orders)
        if value < period:
            best, period = orders, value
        if period <= bound * (1 + 1e-12):
            break
    return OrderResult(best, period, period)


def _listed(
    timed: TimedGraph, ring: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...] | None:
    """Return a ring, rotated so that each task's entries are in the order of its firings, with one
    offset, and no offset is negative; None if a task's firings are out of order, which never
    helps."""
    for _ in ring:
        seen: dict[str, list[int]] = {}
        offsets: dict[str, set[int]] = {}
        for i, ahead in ring:
            task, firing = timed.names[i]
            seen.setdefault(task, []).append(firing)
            offsets.setdefault(task, set()).add(ahead)
        if all(f == sorted(f) and len(offsets[task]) == 1 for task, f in seen.items()):
            least = min(o for _, o in ring)
            return tuple((i, o - least) for i, o in ring)
        ring = (*ring[1:], (ring[0][0], ring[0][1] + 1))
    return None
