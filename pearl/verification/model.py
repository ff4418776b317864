"""The plans of a problem, defined a second time: firings, memory, the timed graph of an assignment.

Nothing here is shared with the solvers, so a fault of one definition shows. From `pearl.planning`
come the tables of modes and the graphs of copies (`replicas`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from pearl.errors import SpecError
from pearl.graph.limits import Call, Limits
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.period import token_free_cycle
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import enumerate_splits
from pearl_devices import Link, arrays_on_host
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import size_bytes

Arc = tuple[int, int, float, int]
"""From node, to node, least seconds between their starts, tokens."""


class RefusedError(SpecError):
    """A plan or its proof does not hold.

    row: the rule that it breaks, such as `memory gpu` or `arc act[0] → learn[0]`.
    """

    def __init__(self, row: str, text: str) -> None:
        self.row = row
        super().__init__(f"plan: {row}: {text}")


def require(holds: bool, row: str, text: str) -> None:
    if not holds:
        raise RefusedError(row, text)


def channel_bytes(edge: Edge, capacity: int | None = None) -> float:
    """Return the bytes that a channel holds on the device of its consumer; by default with the
    least capacity."""
    return (edge.least_capacity if capacity is None else capacity) / edge.production * edge.bytes


def delay_s(link: Link, size: float) -> float:
    return link.latency_s + size / link.bytes_per_s


def load_s(link: Link, size: float) -> float:
    return link.per_message_s + size / link.bytes_per_s


def longest_s(problem: Problem) -> float:
    """Return the longest period within the limits."""
    limits, steps = problem.limits, problem.graph.env_steps or 1
    least = limits.min_throughput_per_s
    return min(limits.period_s or math.inf, steps / least if least else math.inf)


def strong_parts(n: int, arcs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the strongly connected part of each node."""
    pairs = np.array([*arcs, *((i, i) for i in range(n))])
    graph = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    return [int(part) for part in connected_components(graph, connection="strong")[1]]


@dataclass(frozen=True)
class Space:
    """One choice of copies, slack and fused calls.

    problem: of the copies; its graph has the slack. bare: its graph with the least slack.
    units: the calls, each a task or the tasks of a fused call, in the order of the graph.
    """

    problem: Problem
    bare: TaskGraph
    units: tuple[tuple[str, ...], ...]

    @cached_property
    def unit_of(self) -> dict[str, int]:
        return {t: u for u, unit in enumerate(self.units) for t in unit}

    def firings(self, u: int) -> int:
        unit = self.units[u]
        return self.problem.graph.repetition[unit[0]] if len(unit) == 1 else 1

    def call(self, u: int, mode: Mode, lane: int) -> Call:
        return Call(self.units[u], mode.device, mode.variant, mode.width, lane)

    @cached_property
    def nodes(self) -> list[tuple[int, int]]:
        """Unit and number of each firing of an iteration."""
        return [(u, f) for u in range(len(self.units)) for f in range(self.firings(u))]

    @cached_property
    def first(self) -> list[int]:
        """The first node of each unit."""
        return [i for i, (_, f) in enumerate(self.nodes) if f == 0]

    def node(self, task: str, firing: int) -> int:
        u = self.unit_of[task]
        return self.first[u] + (firing if len(self.units[u]) == 1 else 0)

    def waits(self, e: Edge, initial: int) -> Iterator[tuple[int, int, int]]:
        """Yield (source, destination, tokens): the destination's firing needs the source's, so many
        iterations before. initial: tokens on the edge at the beginning."""
        q = self.problem.graph.repetition
        for f in range(q[e.dst]):
            whole = q[e.dst] * e.consumption
            end = whole if e.reach is None else (f + 1) * e.consumption + e.reach
            end = min(end, whole)
            last = (end - 1 - initial) // e.production
            for firing in range((end - e.consumption - initial) // e.production, last + 1):
                before, number = divmod(firing, q[e.src])
                yield self.node(e.src, number), self.node(e.dst, f), -before

    @cached_property
    def arcs(self) -> list[tuple[int, int, int, int]]:
        """(from, to, tokens, edge) of each dependence, fewest tokens each. A fused call does not
        wait for itself."""
        least: dict[tuple[int, int, int], int] = {}
        for number, e in enumerate(self.problem.graph.edges):
            fused = self.unit_of[e.src] == self.unit_of[e.dst] and e.src != e.dst
            fused = fused or (len(self.units[self.unit_of[e.src]]) > 1 and e.src == e.dst)
            for s, d, m in self.waits(e, e.tokens):
                if not (fused and m == 0):
                    least[s, d, number] = min(m, least.get((s, d, number), m))
        return [(s, d, m, number) for (s, d, number), m in least.items()]

    @cached_property
    def deadlocked(self) -> bool:
        return bool(token_free_cycle(len(self.nodes), [(s, d, 0.0, m) for s, d, m, _ in self.arcs]))

    @cached_property
    def modes(self) -> tuple[tuple[Mode, ...], ...]:
        """The modes that the limits allow each unit."""
        limits, unit_bytes = self.problem.limits, self.problem.costs.platform.device
        return tuple(
            tuple(
                m
                for m in self.problem.costs.of(*unit)
                if m.unit_bytes <= unit_bytes(m.device).unit_memory_bytes
                and all(
                    m.device in limits.devices.get(t, (m.device,))
                    and limits.pin.get(t, m.device) == m.device
                    and m.variant in limits.variants.get(t, (m.variant,))
                    for t in unit
                )
            )
            for unit in self.units
        )

    @cached_property
    def classes(self) -> list[list[int]]:
        """The units that share a device: by a state, a group, or `together`."""
        tasks, at = self.problem.graph.tasks, self.unit_of
        rows = [[t.name for t in tasks if s in t.home] for s in self.problem.graph.states]
        groups = {t.group for t in tasks if t.group}
        rows += [[t.name for t in tasks if t.group == g] for g in groups]
        rows += map(list, self.problem.limits.together)
        joined = [(at[row[0]], at[t]) for row in rows for t in row]
        parts = strong_parts(len(self.units), [*joined, *((b, a) for a, b in joined)])
        found: dict[int, list[int]] = {c: [] for c in parts}
        for u, c in enumerate(parts):
            found[c].append(u)
        return list(found.values())

    @cached_property
    def memory(self) -> tuple[list[float], dict[str, float]]:
        """The bytes that each class keeps on its device, and those that each device has."""
        graph, platform = self.problem.graph, self.problem.costs.platform
        most = self.problem.limits.memory_bytes
        room = {d.name: min(d.memory_bytes, most.get(d.name, math.inf)) for d in platform.devices}
        scratch, on = {f.tasks: f.kernel.resident_bytes for f in graph.fusions}, platform.device
        owner: dict[str, str] = {}
        for states in ("home", "reads", "writes"):
            for t in graph.tasks:
                for s in getattr(t, states):
                    owner.setdefault(s, t.name)
        needs = []
        for members in self.classes:
            tasks = [graph.task(t) for u in members for t in self.units[u]]
            names, need = {t.name for t in tasks}, 0.0
            for u in members:
                unit = self.units[u]
                alone = sum(graph.task(t).kernel.resident_bytes for t in unit)
                need += scratch.get(unit, alone) if len(unit) > 1 else alone
            need += sum(size for s, size in graph.states.items() if owner.get(s) in names)
            arrays, kept = dict[str, Any](), dict[str, set[str]]()
            for t in tasks:
                modes = self.modes[self.unit_of[t.name]]
                ways = {(on(m.device).kind, "" if m.fused else m.variant) for m in modes}
                rows = [set(arrays_on_host(t.kernel, *w)) if w[1] else set() for w in ways]
                kept[t.name] = set.intersection(*rows) if rows else set()
            names = set[str]().union(*kept.values())
            for t in tasks if names else ():
                arrays |= (own := kind_of(t.kernel).arrays(t.kernel))
                names -= set(own) - kept[t.name]
            heads = tuple(f"{s}." for s in graph.states)
            away = sum(size_bytes(arrays[n]) for n in names if n.startswith(heads))
            needs.append(need - away)
            room[platform.host] -= away
        return needs, room

    def lanes_on(self, device: str) -> int:
        """Most lanes of a device."""
        d, most = self.problem.costs.platform.device(device), self.problem.limits.max_lanes
        return min(d.max_lanes, d.width, most or d.max_lanes, len(self.units))

    def is_channel(self, e: Edge) -> bool:
        return e.bytes > 0 and self.unit_of[e.src] != self.unit_of[e.dst]

    def payload(self, e: Edge) -> tuple[float, int]:
        """Bytes of a message of the edge's source, and messages of an iteration."""
        q = self.problem.graph.repetition[e.src]
        return (e.bytes, q) if len(self.units[self.unit_of[e.src]]) == 1 else (e.bytes * q, 1)

    def stops(self, src: str, dst: str) -> list[tuple[Link, str]]:
        """The links of a message between two devices, and the device behind each."""
        route = self.problem.costs.platform.route(src, dst)
        ends = [self.problem.costs.platform.host, dst] if len(route) > 1 else [dst]
        return list(zip(route, ends, strict=False))


def spaces(problem: Problem) -> Iterator[Space]:
    """Yield every choice of copies, of slack at its limits, and of fused calls.

    More slack makes no period longer, so smaller slack is left out; `Space.bare` keeps its memory.
    """
    for split in enumerate_splits(problem.graph, problem.limits):
        part = split_problem(problem, split)
        fused = list(dict.fromkeys(m.tasks for m in part.costs.modes if m.fused and not m.share))
        for slack in _slacks(part.graph, part.limits):
            whole = replace(part, graph=part.graph.with_slack(slack))
            for size in range(len(fused) + 1):
                for calls in combinations(fused, size):
                    if len({t for c in calls for t in c}) == sum(map(len, calls)):
                        yield Space(whole, part.graph, units_of(part.graph, calls))


def units_of(graph: TaskGraph, calls: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    call = {t: c for c in calls for t in c}
    return tuple(dict.fromkeys(call.get(t.name, (t.name,)) for t in graph.tasks))


def _slacks(graph: TaskGraph, limits: Limits) -> Iterator[dict[EdgeKey, int]]:
    """Yield the most slack of each edge; prefetch and deferred priorities share one limit."""
    keyed = {k: e for k, e in key_edges(graph.edges).items() if e.limit}
    names = {e.limit for e in keyed.values()}
    shared = {"prefetch", "priority_staleness"} <= names
    for ahead in range(min(limits.prefetch, limits.priority_staleness) + 1 if shared else 1):
        most = {n: getattr(limits, n or "") for n in names}
        if shared:
            most |= {"prefetch": ahead, "priority_staleness": limits.priority_staleness - ahead}
        yield {k: max(e.slack, most[e.limit]) for k, e in keyed.items()}


def fits_slack(slack: Mapping[EdgeKey, int], graph: TaskGraph, limits: Limits) -> bool:
    """Return whether slack of the edges is at least the graph's and within the limits."""
    more: dict[str | None, int] = {}
    for key, e in key_edges(graph.edges).items():
        if slack[key] > e.slack:
            more[e.limit] = max(slack[key], more.get(e.limit, 0))
    both = more.get("prefetch", 0) + more.get("priority_staleness", 0)
    shared = any(e.limit == "priority_staleness" for e in graph.edges)
    return (
        all(slack[key] >= e.slack for key, e in key_edges(graph.edges).items())
        and all(name and n <= getattr(limits, name) for name, n in more.items())
        and not (shared and both > limits.priority_staleness)
    )


@dataclass(frozen=True)
class Timed:
    """Firings and messages of an assignment as nodes with arcs, and the nodes of each lane.

    Messages that a link pays for are nodes; the others are seconds of arcs and lanes.
    """

    space: Space
    names: list[tuple[str, int]]
    latency: list[float]
    occupancy: list[float]
    arcs: list[Arc]
    lanes: dict[str, list[int]]
    dynamic_j: float


def timed_graph(x: Space, modes: Sequence[Mode], lanes: Sequence[int]) -> Timed:
    """Return the timed graph of a mode and a lane for each unit.

    Raises:
        RefusedError: pair terms leave a firing less than no time.
    """
    graph, costs = x.problem.graph, x.problem.costs
    q, host, on = graph.repetition, costs.platform.host, [m.device for m in modes]
    key = {unit[0]: m.key for unit, m in zip(x.units, modes, strict=True) if len(unit) == 1}
    extra = [0.0] * len(modes)
    for ((a, of_a), (b, of_b)), s in costs.pair_extra_s.items():
        if key.get(a) == of_a and key.get(b) == of_b:
            extra[x.unit_of[a]] += s
    for a, b, s, shared in costs.lane_terms:
        u, w = x.unit_of[a], x.unit_of[b]
        if u != w and ((on[u], lanes[u]) == (on[w], lanes[w])) == shared:
            extra[u] += s * (q[a] if len(x.units[u]) > 1 else 1)
    for u, mode in enumerate(modes):
        took = mode.estimate.occupancy_s + extra[u]
        require(took >= -1e-15, f"time {'+'.join(x.units[u])}", f"its pair terms leave {took} s")
    latency = [max(0.0, m.estimate.latency_s + s) for m, s in zip(modes, extra, strict=True)]
    occupancy = [max(0.0, m.estimate.occupancy_s + s) for m, s in zip(modes, extra, strict=True)]
    joules = [x.firings(u) * m.estimate.energy_j for u, m in enumerate(modes)]
    hops: dict[tuple[str, str], tuple[Link, float, float, tuple[str, str] | None]] = {}
    entered: dict[tuple[str, str], int] = {}
    for e in graph.edges:
        before: tuple[str, str] | None = None
        size = x.payload(e)[0]
        src, dst = on[x.unit_of[e.src]], on[x.unit_of[e.dst]]
        for link, to in x.stops(src, dst):
            _, most, least, _ = hops.get((e.src, to), (link, 0.0, math.inf, None))
            hops[e.src, to] = link, max(size, most), min(size, least), before
            before = e.src, to
        if src != dst:
            entered[e.src, dst] = min(x.unit_of[e.dst], entered.get((e.src, dst), len(modes)))
    messages = {e.src: x.payload(e)[1] for e in graph.edges}
    for (task, to), (link, size, _, before) in hops.items():
        joules.append(messages[task] * size * link.energy_j_per_byte)
        if link.paid_by == "lane":
            u = x.unit_of[task]
            u = entered[task, to] if before or on[u] == host else u
            occupancy[u] += messages[task] * load_s(link, size) / x.firings(u)
    names = [("+".join(x.units[u]), f) for u, f in x.nodes]
    until, busy = ([of[u] for u, _ in x.nodes] for of in (latency, occupancy))
    places: dict[str, list[int]] = {}
    for i, (u, _) in enumerate(x.nodes):
        places.setdefault(f"{on[u]}.{lanes[u]}", []).append(i)
    arcs: list[Arc] = []
    sent: dict[tuple[str, str, int], tuple[int, float]] = {}
    for (task, to), (link, size, least, before) in sorted(
        hops.items(), key=lambda h: bool(h[1][3])
    ):
        for f in range(messages[task]):
            begin = x.node(task, f), latency[x.unit_of[task]]
            if before:
                node, wait = sent[*before, f]
                begin = node, wait + delay_s(hops[before][0], least)
            sent[task, to, f] = begin
            if link.paid_by == "link":
                sent[task, to, f] = len(names), 0.0
                arcs.append((begin[0], len(names), begin[1], 0))
                places.setdefault(link.name, []).append(len(names))
                names.append((f"{task}>{to}", f))
                until.append(delay_s(link, size))
                busy.append(load_s(link, size))
    for at, d, tokens, number in x.arcs:
        e, (u, f) = graph.edges[number], x.nodes[at]  # a fused call sends one message, from f 0
        to = on[x.unit_of[e.dst]]
        if on[u] == to:
            arcs.append((at, d, latency[u], tokens))
            continue
        (link, _, least, before), size = hops[e.src, to], x.payload(e)[0]
        node, wait = sent[e.src, to, f]
        arcs.append((node, d, wait + delay_s(link, size), tokens))
        if before and size > least:
            node, wait = sent[*before, f]
            arcs.append(
                (node, d, wait + sum(delay_s(k, size) for k, _ in x.stops(on[u], to)), tokens)
            )
    return Timed(x, names, until, busy, arcs, places, math.fsum(joules))
