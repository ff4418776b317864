"""The objective `makespan`: one iteration, from time 0 to the end of its last firing.

Initial tokens are there at time 0, so only the rows of the single-rate expansion without tokens
order the firings: a directed acyclic graph. Firings are not interrupted, a lane or a link does one
thing at a time, transfers are those of the theory; what only the next iteration consumes crosses
its link last and is not waited for. Slack stays as the graph has it: tokens that slack adds are
empty firings, so more of them would leave work out of the iteration instead of doing it sooner.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import SpecError
from pearl.graph.period import simulate
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph, delay_s
from pearl.solvers.model.linear import Linear
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.orders.lane_sequencing import OrderResult
from pearl.solvers.orders.list_orders import ring_period
from pearl.time_limit import left_s, look, watched

Arrival = tuple[int, float, str]
"""A firing that is waited for, the bytes it sends, and the task that sends them ("" for none)."""


@dataclass(frozen=True)
class DagInstance:
    """One iteration of a search space: its firings and what each waits for.

    Firings are numbered as the nodes of the search space's expansion. before, after: arcs without
    tokens into and out of each. Firings of a unit run on one lane in their own order: turn gives
    the next one, or -1. nexts: all that waits for each, once; waits: for how many each waits.
    order: every firing after those it waits for.
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
        """Firing → its position in `order`."""
        place = [0] * len(self.order)
        for k, v in enumerate(self.order):
            place[v] = k
        return tuple(place)

    @cached_property
    def unit(self) -> tuple[int, ...]:
        return tuple(u for u, _ in self.space.expansion.nodes)

    @cached_property
    def devices(self) -> tuple[tuple[str, ...], ...]:
        """The devices each unit may run on."""
        return tuple(tuple(dict.fromkeys(m.device for m in o)) for o in self.space.options)

    @cached_property
    def _delays(self) -> dict[tuple[str, str, float], float]:
        return {}

    def delay_s(self, src: str, dst: str, size_bytes: float) -> float:
        """Seconds of a message between two devices where no link is busy."""
        if src == dst:
            return 0.0
        key = (src, dst, size_bytes)
        if key not in self._delays:
            route = self.space.costs.platform.route(src, dst)
            self._delays[key] = math.fsum(delay_s(link, size_bytes) for link in route)
        return self._delays[key]

    def mean_delay_s(self, src: int, dst: int, size_bytes: float) -> float:
        """Mean of `delay_s` over the pairs of different devices that two units may run on."""
        pairs = [(d, e) for d in self.devices[src] for e in self.devices[dst] if d != e]
        if not pairs:
            return 0.0
        return math.fsum(self.delay_s(d, e, size_bytes) for d, e in pairs) / len(pairs)


def build_instance(space: SearchSpace) -> DagInstance:
    """The arcs without tokens of a search space's expansion, one for each sender, the largest
    message of it."""
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
    """Return the `search_spaces` of this objective.

    Raises:
        SpecError: a limit on power, period or throughput is set.
        InfeasibleError: some task has no mode left.
    """
    limits = problem.limits
    unknown = {
        "power": limits.power_w,
        "period": limits.period_s,
        "min_throughput": limits.min_throughput_per_s,
    }
    problems = [
        f"limits.{name} is {value}; objective makespan looks at one iteration and allows devices, "
        "variants, pin, together, memory and max_lanes: leave it out, or ask for throughput or "
        "power_efficiency"
        for name, value in unknown.items()
        if value is not None
    ]
    if problems:
        raise SpecError(*problems)
    return search_spaces(replace(problem, limits=limits.without_slack()))


Key = tuple[float, float, float]
"""When a firing or transfer starts, when its lane is free again, and its place among equals."""


def order_by_times(
    a: Assignment, firings: Sequence[Key], copies: Mapping[tuple[str, int], Key]
) -> Candidate:
    """An assignment with its lanes and links in the order of the times given, valued exactly.

    firings: by node of the expansion; copies: (`src>device`, firing) → times of the transfers that
    this iteration waits for. The times only say the order: everything then starts as soon as it
    can.
    """
    timed = build_timed_graph(a)
    last = (math.inf, math.inf, math.inf)
    keys = [
        firings[i] if i < len(firings) else copies.get(name, last)
        for i, name in enumerate(timed.names)
    ]
    orders, start = list_by_keys(timed, keys)
    period = ring_period(timed, orders)
    value = ends_s(timed, start)
    return Candidate(a, OrderResult(orders, period, timed.order_bound_s), period, value)


def list_by_keys(timed: TimedGraph, keys: Sequence[Key]) -> tuple[Orders, list[float]]:
    """Lanes and links in the order of the keys, as far as what waits for what allows, firings of a
    task in their own order; and when each node starts, as soon as it can, in seconds."""
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
    while ready:
        look()
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
    """When each node of the first iteration starts with these orders, in seconds."""
    arcs = [*timed.arcs, *timed.ring(orders)]
    return [float(t) for t in simulate(len(timed.names), arcs, 1)[0]]


def ends_s(timed: TimedGraph, start: Sequence[float]) -> float:
    """When the last firing of an iteration is complete. start: of each node, in seconds."""
    nodes = range(len(timed.assignment.expansion.nodes))
    return max(start[i] + timed.latency_s[i] for i in nodes)


def least_s(it: DagInstance, deadline: float = math.inf) -> float:
    """A time that no plan of the search space undercuts: the longest way through the graph in the
    fastest modes with the transfers that different devices force, and the work shared evenly by
    all lanes (its linear relaxation, left out past the deadline, `time.monotonic()` seconds)."""
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
    """For each unit, device → least latency and least occupancy of its modes there, in seconds,
    pair terms at their most favourable."""
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
    """The least load when every unit may be cut in pieces: a linear program over units and
    devices, Σ firings · occupancy · x ≤ lanes · load."""
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
