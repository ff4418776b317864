"""Minimisation of slack: remove the slack that a plan does not need.

Plans are searched with slack at its limits, because more slack never makes the period longer. Then,
for the assignment found, slack vectors are tried by rising sum, beginning with zero. A vector fails
if a cycle is longer than the target period. Only a token on that cycle can shorten the cycle, so
the next vectors add one slack to each of its edges; the first vector that passes has the least sum.
This is the search for the least storage of Stuijk, Geilen and Basten 2006, with slack instead of
buffers. Other assignments may reach the same value with less slack: an exact method is run again
with each of the smaller vectors.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.limits import Limits
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.period import expand, token_free_cycle
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.orders.list_orders import ring_period

VECTORS = 1000
"""Largest number of slack vectors tried with the plan's orders (assumed: about a second)."""

REORDERED = 24
"""Largest number of slack vectors for which new orders are searched (assumed: about a second)."""

NODES = 60
"""Largest number of searched nodes for one such vector."""

EFFORT = 0.05
"""Share of the usual steps of modulo schedules if orders must only be as good (assumed)."""

SMALLER = 10
"""Largest number of smaller slack vectors for which the whole problem is solved again (assumed)."""

_SAME = 1e-9


@dataclass(frozen=True)
class _Trial:
    """Result of one slack vector: assignment and orders that pass, or edges that may need slack."""

    passed: tuple[Assignment, Orders] | None = None
    mends: tuple[EdgeKey, ...] = ()
    unknown: bool = False


def fewest_tokens(found: Candidate, limits: Limits) -> Candidate:
    """Return the plan with the least total slack for which its assignment keeps its period.

    The result is deterministic: numbers of trials are limited, not times. If a limit is reached,
    the slack is the least for the plan's own orders, or is removed edge by edge.
    """
    assignment = found.assignment
    edges = _relaxable(assignment.expansion.graph)
    if not any(e.slack for e in edges.values()):
        return found
    most = found.period_s * (1 + _SAME)
    caps = _caps(edges, limits)
    own, sought = found.ordered.orders, 0

    def test(vector: Mapping[EdgeKey, int], *, reorder: bool) -> _Trial:
        nonlocal sought
        trial = _with_slack(assignment, vector)
        if trial is None:
            return _Trial(mends=tuple(caps))
        timed = build_timed_graph(trial)
        rings = [] if reorder else timed.ring(own)
        mends = _mends(timed, [*timed.arcs, *rings], edges, most)
        if mends is not None:
            return _Trial(mends=mends)
        if not reorder or ring_period(timed, own) <= most:
            return _Trial((trial, own))
        sought += 1
        if sought > REORDERED:
            raise _EnoughError
        below_s = most * (1 + _SAME)
        ordered = best_orders(timed, below_s=below_s, nodes=NODES, effort=EFFORT)
        if ordered.period_s <= most:
            return _Trial((trial, ordered.orders))
        return _Trial(mends=tuple(caps), unknown=ordered.bound_s <= most)

    best, proven = _least(caps, edges, limits, partial(test, reorder=True))
    if best is None or not proven:
        fixed, _ = _least(caps, edges, limits, partial(test, reorder=False))
        best = min((b for b in (best, fixed) if b), key=_total, default=None)
    if best is None:
        best = _edge_by_edge(assignment, own, edges, most), own
    if _total(best) >= sum(e.slack for e in edges.values()):
        return found
    chosen, orders = best
    period = ring_period(build_timed_graph(chosen), orders)
    ordered = replace(found.ordered, orders=orders, period_s=period)
    return replace(found, assignment=chosen, ordered=ordered)


def fewest_of_all(found: Candidate, problem: Problem, search: Search, run: Solve) -> Candidate:
    """Return a plan of the same cost with less slack, or this plan if there is none.

    run: an exact method. It solves the problem with every smaller vector of slack on the graph's
        own edges, by rising sum. If there are more than SMALLER vectors, none is solved.
    """
    graph, limits = problem.graph, problem.limits
    edges = _relaxable(graph)
    caps = _caps(edges, limits)
    total = sum(taken_slack(found, graph).values())
    if total == 0:
        return found
    if math.comb(total - 1 + len(edges), len(edges)) > SMALLER:
        return found
    tight = replace(problem, limits=limits.without_slack())
    search = replace(search, start=None)
    for least in range(total):
        for vector in itertools.product(range(least + 1), repeat=len(edges)):
            slack = dict(zip(edges, vector, strict=True))
            if sum(vector) != least or not _allowed(slack, caps, edges, limits):
                continue
            try:
                outcome = run(replace(tight, graph=graph.with_slack(slack)), search)
            except InfeasibleError:
                continue
            if outcome.best.cost <= found.cost * (1 + SAME):
                return outcome.best
    return found


def taken_slack(found: Candidate, graph: TaskGraph) -> dict[EdgeKey, int]:
    """Return the slack of a plan on the edges of the graph before its tasks were split."""
    replica_graph, taken = found.assignment.expansion.graph, dict.fromkeys(_relaxable(graph), 0)
    for (src, dst, which), e in _relaxable(replica_graph).items():
        key = replica_graph.origin(src)[0], replica_graph.origin(dst)[0], which
        taken[key] = max(taken[key], e.slack)
    return taken


class _EnoughError(Exception):
    """The number of trials has reached its limit."""


def _total(passed: tuple[Assignment, Orders]) -> int:
    return sum(e.slack for e in passed[0].expansion.graph.edges if e.limit)


def _relaxable(graph: TaskGraph) -> dict[EdgeKey, Edge]:
    """Return the edges whose slack has a limit."""
    return {key: e for key, e in key_edges(graph.edges).items() if e.limit}


def _caps(edges: Mapping[EdgeKey, Edge], limits: Limits) -> dict[EdgeKey, int]:
    return {key: max(e.slack, getattr(limits, e.limit or "")) for key, e in edges.items()}


def _least(
    caps: Mapping[EdgeKey, int],
    edges: Mapping[EdgeKey, Edge],
    limits: Limits,
    test: Callable[[Mapping[EdgeKey, int]], _Trial],
) -> tuple[tuple[Assignment, Orders] | None, bool]:
    """Return the first vector by rising sum that passes, and whether all before it surely fail."""
    keys = list(caps)
    heap = [(0, (0,) * len(keys))]
    queued = set(heap)
    proven = True
    for _ in range(VECTORS):
        if not heap:
            return None, False
        total, vector = heapq.heappop(heap)
        try:
            trial = test(dict(zip(keys, vector, strict=True)))
        except _EnoughError:
            return None, False
        if trial.passed:
            return trial.passed, proven
        proven = proven and not trial.unknown
        for mend in trial.mends:
            more = tuple(n + (key == mend) for key, n in zip(keys, vector, strict=True))
            entry = (total + 1, more)
            if entry not in queued and _allowed(
                dict(zip(keys, more, strict=True)), caps, edges, limits
            ):
                queued.add(entry)
                heapq.heappush(heap, entry)
    return None, False


def _allowed(
    vector: Mapping[EdgeKey, int],
    caps: Mapping[EdgeKey, int],
    edges: Mapping[EdgeKey, Edge],
    limits: Limits,
) -> bool:
    """Return whether slack is within its limits; prefetch and deferral share that of staleness."""
    if any(n > caps[key] for key, n in vector.items()):
        return False
    ahead = [key for key, e in edges.items() if e.limit == "prefetch"]
    deferred = [key for key, e in edges.items() if e.limit == "priority_staleness"]
    if not ahead or not deferred:
        return True
    graph_slack = max(edges[key].slack for key in ahead) + max(edges[key].slack for key in deferred)
    taken = max(vector[key] for key in ahead) + max(vector[key] for key in deferred)
    return taken <= max(limits.priority_staleness, graph_slack)


def _with_slack(assignment: Assignment, vector: Mapping[EdgeKey, int]) -> Assignment | None:
    x = assignment.expansion
    try:
        relaxed = expand(x.graph.with_slack(vector), [u for u in x.units if len(u) > 1])
    except SpecError:
        return None
    return replace(assignment, expansion=relaxed)


def _mends(
    timed: TimedGraph, arcs: Sequence[Arc], edges: Mapping[EdgeKey, Edge], most: float
) -> tuple[EdgeKey, ...] | None:
    """Return None if no cycle is longer than `most`, else the edges of a longer cycle."""
    n = len(timed.names)
    cycle = token_free_cycle(n, arcs)
    if not cycle:
        ratio, cycle = howard(n, arcs)
        if ratio <= most:
            return None
    x = timed.assignment.expansion
    firings = len(x.nodes)
    edges_found: dict[EdgeKey, None] = {}
    for i, j in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        if j >= firings:
            continue  # tokens lie on the arcs into consumers
        senders = x.units[x.nodes[i][0]] if i < firings else (timed.names[i][0].split(">")[0],)
        takers = x.units[x.nodes[j][0]]
        for key, e in edges.items():
            if e.src in senders and e.dst in takers:
                edges_found[key] = None
    return tuple(edges_found)


def _edge_by_edge(
    assignment: Assignment, orders: Orders, edges: Mapping[EdgeKey, Edge], most: float
) -> Assignment:
    for key, e in edges.items():
        low, high = 0, e.slack
        while low < high:
            middle = (low + high) // 2
            trial = _with_slack(assignment, {key: middle})
            period = ring_period(build_timed_graph(trial), orders) if trial else math.inf
            low, high = (low, middle) if period <= most else (middle + 1, high)
        assignment = _with_slack(assignment, {key: low}) or assignment
    return assignment
