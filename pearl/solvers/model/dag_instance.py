"""The objective `makespan`: one iteration, from time 0 to the end of its last firing.

Initial tokens are available at time 0, so only the rows of the single-rate expansion without tokens
order the firings: a directed acyclic graph. Firings are not interrupted, a lane or a link does one
thing at a time, and transfers are those of `docs/theory.md`. A message that only the next iteration
reads crosses its link last, and the makespan does not include it. The slack is that of the graph:
tokens of more slack are empty firings, so more slack would remove work from the iteration instead
of doing the work sooner.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import SpecError
from pearl.graph.limits import LIMITS
from pearl.graph.period import simulate
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph, delay_s
from pearl.solvers.model.linear import Linear
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.orders.lane_sequencing import OrderResult
from pearl.solvers.orders.list_orders import ring_period
from pearl.time_limit import left_s, watched

Arrival = tuple[int, float, str]
"""A predecessor, the bytes it sends, and the task that sends the bytes ("" for none)."""


@dataclass(frozen=True)
class DagInstance:
    """One iteration of a search space: its firings and their predecessors.

    Firings are numbered as the nodes of the search space's expansion. The firings of a unit run on
    one lane in their own order.

    before, after: arcs without tokens into and out of each firing.
    turn: the next firing of the same unit, or -1.
    nexts: the firings that wait for each firing, without duplicates.
    waits: number of firings that each firing waits for.
    order: the firings in a topological order.
    """

    space: SearchSpace
    before: tuple[tuple[Arrival, ...], ...]
    after: tuple[tuple[Arrival, ...], ...]
    turn: tuple[int, ...]
    nexts: tuple[tuple[int, ...], ...]
    waits: tuple[int, ...]
    order: tuple[int, ...]

    @cached_property
    def place(self) -> tuple[int, ...]:
        """The position in `order` of each firing."""
        place = [0] * len(self.order)
        for k, v in enumerate(self.order):
            place[v] = k
        return tuple(place)

    @cached_property
    def unit(self) -> tuple[int, ...]:
        return tuple(u for u, _ in self.space.expansion.nodes)

    @cached_property
    def devices(self) -> tuple[tuple[str, ...], ...]:
        """The devices that each unit may run on."""
        return tuple(tuple(dict.fromkeys(m.device for m in o)) for o in self.space.options)

    @cached_property
    def _delays(self) -> dict[tuple[str, str, float], float]:
        return {}

    def delay_s(self, src: str, dst: str, size_bytes: float) -> float:
        """Return the seconds of a message between two devices whose links are idle."""
        if src == dst:
            return 0.0
        key = (src, dst, size_bytes)
        if key not in self._delays:
            route = self.space.costs.platform.route(src, dst)
            self._delays[key] = math.fsum(delay_s(link, size_bytes) for link in route)
        return self._delays[key]

    def mean_delay_s(self, src: int, dst: int, size_bytes: float) -> float:
        """Return the mean of `delay_s` over the pairs of different devices of two units."""
        pairs = [(d, e) for d in self.devices[src] for e in self.devices[dst] if d != e]
        if not pairs:
            return 0.0
        return math.fsum(self.delay_s(d, e, size_bytes) for d, e in pairs) / len(pairs)


def build_instance(space: SearchSpace) -> DagInstance:
    """Build the instance of a search space: the arcs without tokens of its expansion, one for each
    sender, with the sender's largest message."""
    x = space.expansion
    n = len(x.nodes)
    largest: dict[tuple[int, int, str], float] = {}
    for src, dst, tokens, e in watched(x.arcs):
        if tokens or src == dst:
            continue
        edge = x.graph.edges[e]
        unit = x.units[x.nodes[src][0]]
        size = edge.bytes * (x.graph.repetition[edge.src] if len(unit) > 1 else 1)
        key = (src, dst, edge.src)
        largest[key] = max(size, largest.get(key, 0.0))
    before: list[list[Arrival]] = [[] for _ in range(n)]
    after: list[list[Arrival]] = [[] for _ in range(n)]
    for (src, dst, task), size in largest.items():
        before[dst].append((src, size, task))
        after[src].append((dst, size, task))
    turn = [-1] * n
    last: dict[int, int] = {}
    for v, (u, _) in enumerate(x.nodes):
        if u in last:
            turn[last[u]] = v
        last[u] = v
    nexts = [
        tuple(dict.fromkeys([*(d for d, _, _ in row), *([turn[v]] if turn[v] >= 0 else [])]))
        for v, row in enumerate(after)
    ]
    waits = [0] * n
    for d in (d for row in nexts for d in row):
        waits[d] += 1
    left = waits[:]
    order = [v for v in range(n) if left[v] == 0]
    for v in watched(order):
        for d in nexts[v]:
            left[d] -= 1
            if left[d] == 0:
                order.append(d)
    return DagInstance(
        space,
        tuple(map(tuple, before)),
        tuple(map(tuple, after)),
        tuple(turn),
        tuple(nexts),
        tuple(waits),
        tuple(order),
    )


def makespan_spaces(problem: Problem) -> list[SearchSpace]:
    """Return the `search_spaces` of makespan.

    Raises:
        SpecError: a limit on power, period or throughput is set.
        InfeasibleError: some task has no mode left.
    """
    limits = problem.limits
    allowed = ", ".join(key for key, limit in LIMITS.items() if limit.single)
    problems = [
        f"limits.{key} is {getattr(limits, limit.field)}; objective makespan covers one iteration "
        f"and allows {allowed}: remove the limit, or use the objective throughput or "
        "power_efficiency"
        for key, limit in LIMITS.items()
        if not limit.single and getattr(limits, limit.field) is not None
    ]
    if problems:
        raise SpecError(*problems)
    return search_spaces(replace(problem, limits=limits.without_slack()))


Key = tuple[float, float, float]
"""Start of a firing or transfer, time when its lane is free again, position among equal times."""


def order_by_times(
    a: Assignment, firings: Sequence[Key], copies: Mapping[tuple[str, int], Key]
) -> Candidate:
    """Return an assignment with its lanes and links in the order of given times, evaluated exactly.

    firings: keys by node of the expansion. copies: (`src>device`, firing) → key of a transfer that
    this iteration waits for; one without a key follows its sender at once. The keys determine the
    order only: each firing and transfer then starts as early as possible.
    """
    timed = build_timed_graph(a)
    now = [(s, d) for s, d, _, m in watched(timed.arcs) if m == 0]
    awaited, sender = {s for s, _ in now}, {d: s for s, d in now}

    def key(i: int) -> Key:
        if i < len(firings):
            return firings[i]
        if i not in awaited:
            return math.inf, math.inf, math.inf
        return copies.get(timed.names[i]) or key(sender[i])

    keys = [key(i) for i in range(len(timed.names))]
    orders, start = list_by_keys(timed, keys)
    period = ring_period(timed, orders)
    value = ends_s(timed, start)
    return Candidate(a, OrderResult(orders, period, timed.order_bound_s), period, value)


def list_by_keys(timed: TimedGraph, keys: Sequence[Key]) -> tuple[Orders, list[float]]:
    """Return the orders of lanes and links by keys, and the earliest start of each node in seconds.

    Precedence overrides keys, and firings of a task stay in their order.
    """
    n = len(timed.names)
    out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    waits = [0] * n
    lane_of = [""] * n
    for s, d, w, m in watched(timed.arcs):
        if m == 0:
            out[s].append((d, w))
            waits[d] += 1
    for lane, members in timed.lanes.items():
        last: dict[str, int] = {}
        for i in sorted(members, key=lambda i: timed.names[i][1]):
            lane_of[i] = lane
            name = timed.names[i][0]
            if name in last:
                out[last[name]].append((i, 0.0))
                waits[i] += 1
            last[name] = i
    start = [0.0] * n
    free = dict.fromkeys(timed.lanes, 0.0)
    order: dict[str, list[tuple[int, int]]] = {lane: [] for lane in timed.lanes}
    ready = [(keys[i], i) for i in range(n) if waits[i] == 0]
    heapq.heapify(ready)
    for _ in watched(range(n)):
        if not ready:
            break
        _, i = heapq.heappop(ready)
        lane = lane_of[i]
        start[i] = max(start[i], free[lane])
        free[lane] = start[i] + timed.occupancy_s[i]
        order[lane].append((i, 0))
        for d, w in out[i]:
            start[d] = max(start[d], start[i] + w)
            waits[d] -= 1
            if waits[d] == 0:
                heapq.heappush(ready, (keys[d], d))
    return {lane: tuple(entries) for lane, entries in order.items()}, start


def start_times_s(timed: TimedGraph, orders: Orders) -> list[float]:
    """Return the start of each node of the first iteration with these orders, in seconds."""
    arcs = [*timed.arcs, *timed.ring(orders)]
    return [float(t) for t in simulate(len(timed.names), arcs, 1)[0]]


def ends_s(timed: TimedGraph, start: Sequence[float]) -> float:
    """Return the end of the last firing of an iteration. start: of each node, in seconds."""
    nodes = range(len(timed.assignment.expansion.nodes))
    return max(start[i] + timed.latency_s[i] for i in nodes)


def least_s(it: DagInstance, deadline: float = math.inf) -> float:
    """Return a lower bound on the makespan of a search space.

    It is the larger of the longest path in the fastest modes, with the transfers between different
    devices, and the work shared evenly by all lanes. The work is a linear relaxation, which is
    skipped after the deadline (`time.monotonic()` seconds).
    """
    p = it.space
    quick = fastest(p)
    head: list[dict[str, float]] = [{} for _ in it.order]
    longest = 0.0
    for v in watched(it.order):
        u = it.unit[v]
        for d in it.devices[u]:
            ready = 0.0
            for s, size, _ in it.before[v]:
                w = it.unit[s]
                ready = max(
                    ready,
                    min(
                        head[s][e] + quick[w][e][0] + it.delay_s(e, d, size) for e in it.devices[w]
                    ),
                )
            head[v][d] = max(ready, head[v].get(d, 0.0))
            if it.turn[v] >= 0:
                after = head[v][d] + quick[u][d][1]
                head[it.turn[v]][d] = max(after, head[it.turn[v]].get(d, 0.0))
        longest = max(longest, min(head[v][d] + quick[u][d][0] for d in it.devices[u]))
    if time.monotonic() < deadline:
        longest = max(longest, shared_s(p, quick))
    return longest


def fastest(p: SearchSpace) -> list[dict[str, tuple[float, float]]]:
    """Return for each unit: device → least latency and least occupancy of its modes there, in
    seconds, with the smallest pair terms."""
    less: dict[tuple[str, tuple[str, str, int]], float] = {}
    for (choice, _), extra in p.costs.pair_extra_s.items():
        less[choice] = less.get(choice, 0.0) + min(extra, 0.0)
    rows: list[dict[str, tuple[float, float]]] = []
    for unit, modes in zip(p.expansion.units, p.options, strict=True):
        row: dict[str, tuple[float, float]] = {}
        for m in modes:
            extra = less.get((unit[0], m.key), 0.0) if len(unit) == 1 else 0.0
            latency = max(0.0, m.estimate.latency_s + extra)
            occupancy = max(0.0, m.estimate.occupancy_s + extra)
            old = row.get(m.device, (math.inf, math.inf))
            row[m.device] = min(latency, old[0]), min(occupancy, old[1])
        rows.append(row)
    return rows


def shared_s(p: SearchSpace, quick: Sequence[Mapping[str, tuple[float, float]]]) -> float:
    """Return the least load if units could be split: a linear program over units and devices with
    Σ firings · occupancy · x ≤ lanes · load."""
    x = p.expansion
    scale = max(
        (x.firings(u) * o for u, row in enumerate(quick) for _, o in row.values()), default=0
    )
    if scale == 0:
        return 0.0
    form = Linear()
    load = form.variable()
    loads: dict[str, list[tuple[int, float]]] = {}
    for u, row in enumerate(quick):
        pieces = {d: form.variable(1.0) for d in row}
        form.add([(piece, 1.0) for piece in pieces.values()], 1.0, 1.0)
        for d, (_, occupancy) in row.items():
            loads.setdefault(d, []).append((pieces[d], -x.firings(u) * occupancy / scale))
    for d, terms in loads.items():
        form.add([(load, float(p.lanes[d])), *terms], 0.0, math.inf)
    return form.relax([(load, 1.0)], min(60.0, left_s())) * scale
