"""The period of a timed dataflow graph: single-rate expansion, maximum cycle ratio, simulation.

An arc (src, dst, seconds, tokens) says: iteration n of `dst` starts no earlier than `seconds`
after iteration n − tokens of `src` started. The least period that all arcs allow is the maximum
over cycles of seconds / tokens (Reiter 1968), and self-timed execution attains it (Baccelli,
Cohen, Olsder and Quadrat, Synchronization and Linearity, 1992).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.errors import SpecError
from pearl.graph import retiming
from pearl.graph.cycle_ratio import Arc, howard, runs_compiled
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.time_limit import STRIDE, look, watched

Unit = tuple[str, ...]
"""The tasks of one call: a single task, or the tasks of a fused mode."""

_Parts = tuple[
    tuple[Unit, ...],
    tuple[tuple[int, int], ...],
    dict[tuple[str, int], int],
    tuple[tuple[int, int, int, int], ...],
]
"""Units, nodes, numbers of nodes, and arcs of an `Expansion`."""

KEPT = 8
"""Number of expansions kept for further use (assumed: the choices of slack of one solve)."""

PASSES = 16
"""Passes over the arcs between two looks for a cycle without tokens."""

ITERATIONS = 500
"""Iterations of a simulation that take as long as policy iteration over the same arcs (assumed)."""

WINDOW_UNITS = 16
"""Most units of an expansion whose windows are searched (assumed: a window for each pair)."""


@dataclass(frozen=True)
class FiringWindow:
    """Two firings, each the first or the last of its unit, and the firings that run between them.

    The firings of a unit run in order. So each firing of the window starts after the beginning
    firing has started, and is over before the ending firing starts.

    first, last: the units of the two firings. begin, end: their nodes. firings: (unit, number of
    its firings in the window) of each unit, these two included.
    """

    first: int
    last: int
    begin: int
    end: int
    firings: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Expansion:
    """Single-rate expansion: one node for every firing of an iteration, one for every fused call.

    graph: the graph whose firings are the nodes.
    units: single tasks and fused sets, in the order of the graph's tasks. nodes: (unit, firing).
    node: (task, firing) → node. arcs: (src node, dst node, tokens, edge of the graph).
    """

    graph: TaskGraph
    units: tuple[Unit, ...]
    nodes: tuple[tuple[int, int], ...]
    node: dict[tuple[str, int], int]
    arcs: tuple[tuple[int, int, int, int], ...]

    def firings(self, unit: int) -> int:
        """Nodes of a unit: the repetitions of a task, 1 for a fused call."""
        tasks = self.units[unit]
        return self.graph.repetition[tasks[0]] if len(tasks) == 1 else 1

    @cached_property
    def windows(self) -> tuple[FiringWindow, ...]:
        """The windows in which a lane may have to wait: those with several firings of a unit, or
        two that no path orders. Empty if there are more than WINDOW_UNITS units."""
        units = range(len(self.units))
        if not 1 < len(units) <= WINDOW_UNITS:
            return ()
        n = len(self.nodes)
        number = {node: i for i, node in enumerate(self.nodes)}
        first = [number[u, 0] for u in units]
        last = [number[u, self.firings(u) - 1] for u in units]
        free = [(s, d) for s, d, m, _ in self.arcs if m == 0 and s != d]
        free += [(i, number[u, f + 1]) for (u, f), i in number.items() if (u, f + 1) in number]
        after: list[list[int]] = [[] for _ in range(n)]
        before: list[list[int]] = [[] for _ in range(n)]
        for s, d in free:
            after[s].append(d)
            before[d].append(s)
        ahead = {i: _reachable_from(after, i) for i in {*first, *last}}
        behind = {i: _reachable_from(before, i) for i in {*first, *last}}
        pairs = [(first, first), (first, last), (last, last)]
        found = []
        for begin, end in dict.fromkeys((i, j) for a, b in pairs for i in a for j in b):
            inside = ahead[begin] & behind[end]
            if begin == end or not inside:
                continue
            counts = Counter(self.nodes[node][0] for node in inside)
            members = sorted(counts)
            if max(counts.values()) > 1 or any(
                first[v] not in ahead[first[u]] and first[u] not in ahead[first[v]]
                for k, u in enumerate(members)
                for v in members[:k]
            ):
                firings = tuple((u, counts[u]) for u in members)
                u, w = self.nodes[begin][0], self.nodes[end][0]
                found.append(FiringWindow(u, w, begin, end, firings))
        return tuple(found)

    def arcs_of(self, edge: Edge) -> list[tuple[int, int, int]]:
        """Return the arcs (src node, dst node, tokens) of one edge, fewest tokens each.

        Firing f of dst waits for firing F = ⌊(f·c + a − m) / p⌋ of src, a = 0 … c − 1: an arc from
        copy F mod q with −⌊F / q⌋ tokens. With a reach, the last token of its window replaces
        f·c + c − 1. Dependences within one fused call are left out. The number of arcs is at most
        the firings of both tasks: a common divisor of the rates adds none.
        """
        return _arcs_of(edge, self.graph.repetition, self.units, self.nodes, self.node)


def _reachable_from(out: Sequence[Sequence[int]], start: int) -> set[int]:
    found, queue = {start}, [start]
    while queue:
        new = set(out[queue.pop()]) - found
        found |= new
        queue += new
    return found


def expand(graph: TaskGraph, fused: Sequence[Unit] = ()) -> Expansion:
    """Return the single-rate expansion of `graph` with each of `fused` contracted into one call.

    Raises:
        SpecError: a cycle has no tokens: a deadlock of the graph, or a fused call that would wait
            for itself; the text names the tasks of the cycle.
    """
    firings = tuple((t.name, graph.repetition[t.name]) for t in graph.tasks)
    parts, cycle = _expanded(firings, graph.edges, tuple(tuple(unit) for unit in fused))
    expansion = Expansion(graph, *parts)
    if cycle:
        raise SpecError(
            f"graph {graph.name!r}: deadlock: {_lacking_tokens(expansion, cycle)}"
            + (", or do not fuse these tasks" if fused else "")
        )
    return expansion


@lru_cache(maxsize=KEPT)
def _expanded(
    firings: tuple[tuple[str, int], ...], edges: tuple[Edge, ...], fused: tuple[Unit, ...]
) -> tuple[_Parts, Sequence[int]]:
    """Return units, nodes, numbers of nodes and arcs of an expansion, and a cycle without tokens. A
    solve expands the same graph for its search, its bounds and the check of its plan."""
    member, count = {t: unit for unit in fused for t in unit}, dict(firings)
    units = tuple(dict.fromkeys(member.get(name, (name,)) for name in count))
    nodes: list[tuple[int, int]] = []
    node: dict[tuple[str, int], int] = {}
    for u, unit in enumerate(units):
        for f in watched(range(count[unit[0]])):
            if len(unit) == 1 or f == 0:
                nodes.append((u, f))
            node[unit[0], f] = len(nodes) - 1
        for t in unit[1:]:
            node.update({(t, f): len(nodes) - 1 for f in watched(range(count[t]))})
    found: list[tuple[int, int, int, int]] = []
    for e, edge in enumerate(edges):
        found += [(s, d, m, e) for s, d, m in _arcs_of(edge, count, units, nodes, node)]
    cycle = token_free_cycle(len(nodes), [(s, d, 0.0, m) for s, d, m, _ in found])
    return (units, tuple(nodes), node, tuple(found)), cycle


def _arcs_of(
    edge: Edge,
    firings: Mapping[str, int],
    units: Sequence[Unit],
    nodes: Sequence[tuple[int, int]],
    node: Mapping[tuple[str, int], int],
) -> list[tuple[int, int, int]]:
    p, c, m = edge.production, edge.consumption, edge.tokens
    sent, taken = firings[edge.src], firings[edge.dst]
    first_src, first_dst = node[edge.src, 0], node[edge.dst, 0]
    fused_src, fused_dst = (len(units[nodes[i][0]]) > 1 for i in (first_src, first_dst))
    step_src, step_dst = int(not fused_src), int(not fused_dst)  # a fused call is one node
    least: dict[tuple[int, int], int] = {}
    for f in watched(range(taken)):
        end = edge.tokens_needed(f, taken) - m
        dst = first_dst + step_dst * f
        for firing in range((end - c) // p, (end - 1) // p + 1):
            before, number = divmod(firing, sent)
            src = first_src + step_src * number
            if fused_src and src == dst and before == 0:
                continue
            least[src, dst] = min(-before, least.get((src, dst), -before))
    return [(src, dst, tokens) for (src, dst), tokens in least.items()]


def _lacking_tokens(x: Expansion, cycle: Sequence[int]) -> str:
    """Return which tokens a cycle of firings has, and how many it needs."""
    names = ["+".join(x.units[x.nodes[n][0]]) for n in cycle]
    around = " → ".join(n for i, n in enumerate(names) if i == 0 or n != names[i - 1])
    around = f"the cycle {around} → {names[0]}"
    steps = set(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    fewest: dict[tuple[int, int], tuple[int, int]] = {}
    for s, d, m, e in x.arcs:
        if (s, d) in steps:
            fewest[s, d] = min((m, e), fewest.get((s, d), (m, e)))
    on_cycle = sorted({e for _, e in fewest.values()})
    found = []
    for e in on_cycle:
        edge = x.graph.edges[e]
        if edge.tokens:
            needed = _tokens_needed(x, on_cycle, e)
            needs = f", and needs {needed} with the other edges as they are" if needed else ""
            found.append(f"the edge {edge.src} → {edge.dst} has {edge.tokens}{needs}")
    if not found:
        return (
            f"{around} has no token, so none of its firings can ever start; give one of its edges "
            "tokens"
        )
    return (
        f"{around} has too few tokens for all firings of an iteration: {'; '.join(found)}: give "
        "one of its edges more tokens"
    )


def _tokens_needed(x: Expansion, on_cycle: Sequence[int], e: int) -> int | None:
    """Return the fewest tokens of edge e with which the edges of a cycle have no deadlock; None if
    no number is enough."""
    edge = x.graph.edges[e]
    rest = [(s, d, 0.0, m) for s, d, m, k in x.arcs if k in on_cycle and k != e]

    def is_live(added: int) -> bool:
        arcs = x.arcs_of(replace(edge, tokens_seq=edge.tokens_seq + added))
        return not token_free_cycle(len(x.nodes), [*rest, *((s, d, 0.0, m) for s, d, m in arcs)])

    least = range(edge.production * x.graph.repetition[edge.src] + 1)  # the last: an iteration's
    added = bisect_left(least, True, key=is_live)
    return edge.tokens + added if added < len(least) else None


def token_free_cycle(n: int, arcs: Sequence[Arc]) -> list[int]:
    """Return the nodes of a cycle whose tokens sum to 0 or less; empty if there is none."""
    return _retime(n, arcs).cycle


@dataclass(frozen=True)
class _Retiming:
    """Whole shifts of the nodes, 0 or less, with which tokens + shift[src] − shift[dst] is 0 or
    more on every arc, and an order of the nodes that follows the arcs where it is 0.

    cycle: the nodes of a cycle whose tokens sum to 0 or less, which excludes both; else empty.
    """

    shift: Any
    order: Any
    cycle: list[int]


def _retime(n: int, arcs: Sequence[Arc]) -> _Retiming:
    """Return a retiming. The shift of a node is the sum of the tokens on the least path to it."""
    loops: Any = retiming
    compiled = runs_compiled(len(arcs))
    if compiled:
        from pearl.graph import compiled_retiming as loops
    look()
    first, _, heads, _, tokens = _columns(n, arcs, 0, compiled=compiled)
    of_arcs = first, heads, tokens
    shift, order, parent, degree, cycle = (
        np.zeros(n, np.int64) if compiled else [0] * n for _ in range(5)
    )

    def found() -> _Retiming:
        length = loops.write_cycle(parent, degree, cycle)
        return _Retiming(shift, order, [int(u) for u in cycle[:length]])

    # In this order only arcs with tokens lead back: most shifts are final after one pass.
    if loops.order_nodes(*of_arcs, shift, degree, order, parent) < n:
        return found()
    if min(tokens, default=0) >= 0:
        return _Retiming(shift, order, [])
    while loops.shift_nodes(*of_arcs, order, shift, parent, PASSES):
        look()
        if (cyclic := found()).cycle:
            return cyclic
    if loops.order_nodes(*of_arcs, shift, degree, order, parent) < n:
        return found()
    return _Retiming(shift, order, [])


def _columns(n: int, arcs: Sequence[Arc], end: int, *, compiled: bool) -> list[Any]:
    """Return node → the place of its first arc, and tails, heads, seconds and tokens of the arcs
    sorted by their tail (end 0) or head (end 1). They are arrays for compiled loops, else lists."""
    columns = [*zip(*arcs, strict=True)] if arcs else [()] * 4
    if compiled:
        kinds = np.int64, np.int64, np.float64, np.int64
        rows = [np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
        order = np.argsort(rows[end], kind="stable")
        rows = [row[order] for row in rows]
        return [np.searchsorted(rows[end], np.arange(n + 1)), *rows]
    first = [0] * (n + 1)
    for u in columns[end]:
        first[u + 1] += 1
    for u in range(n):
        first[u + 1] += first[u]
    numbers = sorted(range(len(arcs)), key=columns[end].__getitem__)
    return [first, *([column[e] for e in numbers] for column in columns)]


def max_cycle_ratio(
    n: int, arcs: Sequence[Arc], names: Sequence[str] | None = None
) -> tuple[float, list[int]]:
    """Return the largest seconds / tokens over all cycles, and the nodes of a cycle that attains
    it.

    Return (0, []) without a cycle. Tokens of one arc may be negative.

    Raises:
        SpecError: the tokens of a cycle sum to 0 or less; the text gives its nodes by `names`, else
            by number.
    """
    if cycle := token_free_cycle(n, arcs):
        raise _describe_deadlock(cycle, names)
    return howard(n, arcs)


def _describe_deadlock(cycle: Sequence[int], names: Sequence[str] | None = None) -> SpecError:
    around = " → ".join(str(names[i] if names else i) for i in [*cycle, cycle[0]])
    return SpecError(
        f"the tokens of the cycle {around} sum to 0 or less; no firing on it can ever start"
    )


def start_times(n: int, arcs: Sequence[Arc], period_s: float) -> list[float]:
    """Return least start times ≥ 0 of a periodic schedule: firing n of node i at start[i] + n ·
    period_s.

    period_s must be at least the maximum cycle ratio; rounding around critical cycles is absorbed.
    """
    loops: Any = retiming
    compiled = runs_compiled(len(arcs))
    if compiled:
        from pearl.graph import compiled_retiming as loops
    first, _, heads, seconds, tokens = _columns(n, arcs, 0, compiled=compiled)
    small = 1e-12 * (period_s + max((abs(a[2]) for a in arcs), default=0.0))
    counters: list[Any] = [[0] * n, [0] * n, [0] * n, [0] * n, [0, n]]
    start: Any = [0.0] * n
    if compiled:
        counters, start = [np.array(x, np.int64) for x in counters], np.array(start)
    waiting, passes, queue, parent, ends = counters
    early = loops.order_nodes(first, heads, tokens, passes, waiting, queue, parent)
    queue[early:] = [u for u in range(n) if waiting[u] > 0]  # most other values are final at once
    for u in range(n):
        waiting[u] = 1
    of_arcs = first, heads, seconds, tokens
    while ends[1]:
        look()
        loops.push_starts(*of_arcs, start, queue, waiting, passes, ends, period_s, small, STRIDE)
    return [float(t) for t in start]


def simulate(
    n: int,
    arcs: Sequence[Arc],
    iterations: int,
    factors: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Simulate self-timed execution; return start times in seconds, shape (iterations, n).

    Every firing starts as soon as its arcs allow, none before 0. factors: (iterations, n), which
    multiply the seconds of the arcs that leave a node; None for constant times. Arcs may have
    negative tokens (entries that run ahead in a lane); their dependences on iterations beyond the
    last are ignored. A cycle without tokens is a SpecError. O(arcs · iterations).
    """
    made = _retime(n, arcs)
    if made.cycle:
        raise _describe_deadlock(made.cycle)
    loops: Any = retiming
    compiled = runs_compiled(len(arcs) * iterations // ITERATIONS)
    if compiled:
        from pearl.graph import compiled_retiming as loops
    first, tails, _, seconds, tokens = _columns(n, arcs, 1, compiled=compiled)
    shift, order = np.asarray(made.shift, np.int64), np.asarray(made.order, np.int64)
    scale = np.ones(iterations * n) if factors is None else factors.ravel().astype(float)
    rest: list[Any] = [order, shift, scale, np.zeros(iterations * n)]
    if not compiled:
        rest = [row.tolist() for row in rest]
    start = rest[-1]
    whole = (first, tails, seconds, tokens, *rest)
    turns = iterations - int(shift.min(initial=0))
    some = max(1, STRIDE * PASSES // max(1, len(arcs)))
    for turn in range(0, turns, some):
        look()
        loops.run_iterations(*whole, iterations, turn, min(turns, turn + some))
    return np.array(start, np.float64).reshape(iterations, n)


def topological(n: int, arcs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the nodes that no cycle precedes, each after all that lead to it: all nodes if no
    cycle joins any."""
    out: list[list[int]] = [[] for _ in range(n)]
    degree = [0] * n
    for s, d in watched(arcs):
        out[s].append(d)
        degree[d] += 1
    order = [u for u in range(n) if degree[u] == 0]
    for u in watched(order):
        for d in out[u]:
            degree[d] -= 1
            if degree[d] == 0:
                order.append(d)
    return order
