"""A search space as arrays, for all compiled searches of assignments.

An assignment is `place`: item (class) → lane. A lane has a width. If modes of a device are wider
than an even share, the device has lanes of every width that a mode has: a few of them fit together.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.graph.period import topological
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment
from pearl.solvers.model.search_space import SearchSpace, longest_s
from pearl.time_limit import watched
from pearl_devices import Platform

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Functions compiled by numba read these numbers: the digest of machine code covers this file.
LINK, LANE, NOBODY = 0, 1, 2
"""Payer of a copy."""


class Tables(NamedTuple):
    """A search space with lanes.

    latency, occupancy: (units, lanes), seconds of a firing in the mode of least occupancy there.
    seconds: (classes, lanes), seconds of an iteration; infinite if not allowed.
    item: unit → its class. firings: unit → firings per iteration. device: lane → device.
    node_unit: node of the expansion → unit.
    arc_tail, arc_head, arc_tokens, arc_edge: arcs sorted by tail. arc_edge is the number of an
        edge, or -1 for the order of a task's firings and for the arc from a node to itself.
    arc_first: node → its first arc.
    edge_unit, edge_bytes: edge → unit that reads it, and bytes of a message.
    task_unit, task_node, task_messages: producer → unit, node of its first message, messages.
    task_first, task_edges: producer → its edges to other units, by their readers.
    sent_first, sent_arcs: producer → its arcs to other units.
    near_first, near: class → the classes that it exchanges messages with.
    make_first, make: class → producers whose copies depend on its lane.
    host: device. hop, second: (devices, devices), the links of a route, -1 for none.
    up: device → its link to the host, -1 for none.
    wait, byte_wait: (devices, devices), seconds per message and per byte on a route.
    per_message, per_byte, link_wait: link → seconds.
    paid: link → payer.
    memory: class → bytes. capacity: device → bytes.
    width, room: lane → width, device → width. most: device → lanes. most_lanes: of all devices.
    unit_bytes, unit_capacity: (classes, lanes) bytes on each unit of a lane, and device → limit.
    apart_first, apart: class → the classes that must not share its lane.
    term_unit, term_other, term_s, term_shared: the lane terms (`SearchSpace.lane_terms`).
    joules: (classes, lanes), of an iteration. idle_w, always_w: device → power if it is used, and
        power of the others. power_w, longest_s: limits. frugal: whether the cost is energy.
    pooled: whether the lanes of a device do not all fit at once.
    """

    latency: Floats
    occupancy: Floats
    seconds: Floats
    item: Ints
    firings: Ints
    device: Ints
    node_unit: Ints
    arc_tail: Ints
    arc_head: Ints
    arc_tokens: Ints
    arc_edge: Ints
    arc_first: Ints
    edge_unit: Ints
    edge_bytes: Floats
    task_unit: Ints
    task_node: Ints
    task_messages: Ints
    task_first: Ints
    task_edges: Ints
    sent_first: Ints
    sent_arcs: Ints
    near_first: Ints
    near: Ints
    make_first: Ints
    make: Ints
    host: int
    hop: Ints
    second: Ints
    up: Ints
    wait: Floats
    byte_wait: Floats
    per_message: Floats
    per_byte: Floats
    link_wait: Floats
    paid: Ints
    memory: Floats
    capacity: Floats
    width: Ints
    room: Ints
    most: Ints
    most_lanes: float
    unit_bytes: Floats
    unit_capacity: Floats
    apart_first: Ints
    apart: Ints
    term_unit: Ints
    term_other: Ints
    term_s: Floats
    term_shared: NDArray[np.bool_]
    joules: Floats
    idle_w: Floats
    always_w: float
    power_w: float
    longest_s: float
    frugal: bool
    pooled: bool


class Scratch(NamedTuple):
    """Arrays for the results of evaluations.

    latency: unit → seconds of a firing with its lane terms.
    policy: arc of each node, reused by the next evaluation. cycle, length: nodes of the critical
    cycle and their number. used, number: of devices; kept, held: of lanes.
    """

    latency: Floats
    occupancy: Floats
    load: Floats
    size: Floats
    payer: Ints
    reached: Ints
    sent: Floats
    seconds: Floats
    policy: Ints
    ratio: Floats
    value: Floats
    state: Ints
    path: Ints
    cycle: Ints
    length: Ints
    used: Floats
    number: Ints
    kept: Floats
    held: Ints


@dataclass(frozen=True)
class Places:
    """The tables of a search space. lanes: (device, number) of each lane."""

    space: SearchSpace
    lanes: tuple[tuple[str, int], ...]
    t: Tables

    @cached_property
    def _best(self) -> tuple[dict[str, _Fitting], ...]:
        return _fitting_modes(self.space)

    def assignment(self, place: Ints) -> Assignment:
        """Return the assignment with each item on the given lane, in its mode of least
        occupancy."""
        p, t = self.space, self.t
        number: dict[str, dict[int, int]] = {}
        for k in np.unique(place):
            device = self.lanes[k][0]
            used = number.setdefault(device, {})
            used[int(k)] = len(used) if self.t.pooled else self.lanes[k][1]
        lanes = [int(place[c]) for c in t.item]
        modes, numbers = [], []
        for u, k in enumerate(lanes):
            device = self.lanes[k][0]
            mode = self._best[u][device].at(int(t.width[k]))
            if mode is not None:
                modes.append(mode)
                numbers.append(number[device][k])
        return Assignment(p.expansion, p.costs, tuple(modes), tuple(numbers))

    def place_of(self, a: Assignment) -> Ints | None:
        """Return the lanes of an assignment if each item is on one lane, else None."""
        widest: dict[tuple[str, int], int] = {}
        for m, lane in zip(a.modes, a.lanes, strict=True):
            key = m.device, lane
            widest[key] = max(m.width, widest.get(key, 0))
        number = {lane: k for k, lane in enumerate(self.lanes)}
        taken: dict[tuple[str, int], int] = {}
        for key, width in widest.items():
            if not self.t.pooled:
                taken[key] = number.get(key, -1)
                continue
            free = [
                k
                for k, (device, _) in enumerate(self.lanes)
                if device == key[0] and self.t.width[k] >= width and k not in taken.values()
            ]
            taken[key] = min(free, key=lambda k: self.t.width[k], default=-1)
        place = np.zeros(len(self.space.classes), np.int64)
        for c, members in enumerate(self.space.classes):
            lanes = {taken[a.modes[u].device, a.lanes[u]] for u in members}
            if len(lanes) > 1 or -1 in lanes or self.t.seconds[c, min(lanes)] == math.inf:
                return None
            place[c] = lanes.pop()
        return place


class _Fitting(NamedTuple):
    """The modes of a unit on a device. best: the mode of least occupancy of at most each width."""

    widths: tuple[int, ...]
    best: tuple[Mode, ...]

    def at(self, width: int) -> Mode | None:
        k = bisect_right(self.widths, width)
        return self.best[k - 1] if k else None


def _fitting_modes(p: SearchSpace) -> tuple[dict[str, _Fitting], ...]:
    found = []
    for there in p.on_device:
        row = {}
        for device, modes in there.items():
            widths, best = list[int](), list[Mode]()
            for m in sorted(modes, key=lambda m: m.width):
                e = m.estimate
                if best:
                    least = best[-1].estimate
                    if (least.occupancy_s, least.latency_s) <= (e.occupancy_s, e.latency_s):
                        continue
                widths.append(m.width)
                best.append(m)
            row[device] = _Fitting(tuple(widths), tuple(best))
        found.append(row)
    return tuple(found)


def producers(space: SearchSpace) -> list[str]:
    """Return the tasks with messages to other units, in the order of `Tables.task_unit`."""
    x = space.expansion
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    return list(dict.fromkeys(e.src for e in x.graph.edges if unit[e.src] != unit[e.dst]))


def packed(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return rows as one array, with the first position of each row."""
    first = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=first[1:])
    return first, np.array([v for r in rows for v in r], np.int64)


def _lanes(p: SearchSpace, even: bool) -> tuple[list[tuple[str, int, int]], bool]:
    """Return device, number and width of each lane, and whether too many are listed to fit at once.

    even: the lanes of a device share its width evenly.
    """
    lanes: list[tuple[str, int, int]] = []
    pooled = False
    wide: dict[str, set[int]] = {d.name: {0} for d in p.costs.platform.devices}
    for m in (m for options in p.options for m in options):
        wide[m.device].add(m.width)
    for d in p.costs.platform.devices:
        most = min(p.lanes[d.name], len(p.classes))
        share = d.width // p.lanes[d.name]
        if even or max(wide[d.name]) <= share:
            lanes += [(d.name, k, share) for k in range(most)]
            continue
        pooled = True
        number = 0
        for width in sorted(wide[d.name] - {0}):
            for _ in range(min(most, d.width // width)):
                lanes.append((d.name, number, width))
                number += 1
    return lanes, pooled


def _routes(platform: Platform) -> tuple[Ints, Ints, Floats, Floats]:
    """Return `Tables.hop`, `second`, `wait` and `byte_wait` of a platform."""
    index = {d.name: k for k, d in enumerate(platform.devices)}
    direct = np.full((len(index), len(index)), -1, np.int64)
    for k, link in enumerate(platform.links):
        direct[index[link.a], index[link.b]] = direct[index[link.b], index[link.a]] = k
    up = direct[:, index[platform.host]]
    joined = (up[:, None] >= 0) & (up >= 0) & ~np.eye(len(up), dtype=bool)
    hop = np.where((direct < 0) & joined, up[:, None], direct)
    second = np.where((direct < 0) & joined, up, -1)
    # the last entry is for -1, no link
    waits = np.array([*(link.latency_s for link in platform.links), 0.0])
    byte_waits = np.array([*(1 / link.bytes_per_s for link in platform.links), 0.0])
    return hop, second, waits[hop] + waits[second], byte_waits[hop] + byte_waits[second]


def to_places(space: SearchSpace, problem: Problem | None = None, *, even: bool = False) -> Places:
    """Return the tables of a search space.

    problem: with its objective, its limit of power, and all rules that couple lanes; None: only
        widths, numbers of lanes and memory of devices count.
    even: the lanes of a device share its width evenly, so that all of them fit at once.
    """
    p, x, platform = space, space.expansion, space.costs.platform
    names = [d.name for d in platform.devices]
    index = {n: k for k, n in enumerate(names)}
    listed, pooled = _lanes(p, even)
    fitting = _fitting_modes(p)
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    item = np.zeros(len(x.units), np.int64)
    for c, members in enumerate(p.classes):
        item[list(members)] = c
    shape = len(x.units), len(listed)
    latency, occupancy = np.full(shape, np.inf), np.full(shape, np.inf)
    joules, kept = np.zeros((len(p.classes), len(listed))), np.zeros((len(p.classes), len(listed)))
    seconds = np.zeros((len(p.classes), len(listed)))
    firings = np.array([x.firings(u) for u in range(len(x.units))], np.int64)
    for u in watched(range(len(x.units))):
        for k, (device, _, width) in enumerate(listed):
            there = fitting[u].get(device)
            mode = there.at(width) if there else None
            if mode:
                latency[u, k] = mode.estimate.latency_s
                occupancy[u, k] = mode.estimate.occupancy_s
                joules[item[u], k] += firings[u] * mode.estimate.energy_j
                kept[item[u], k] += mode.unit_bytes
    np.add.at(seconds, item, occupancy * firings[:, None])
    node_unit = np.array([u for u, _ in x.nodes], np.int64)
    rows = [(s, d, m, e) for s, d, m, e in x.arcs]
    nodes_of: list[list[int]] = [[] for _ in x.units]
    for i, (u, _) in enumerate(x.nodes):
        nodes_of[u].append(i)
    for row in nodes_of:
        for k, i in enumerate(row):
            rows.append((i, i, 1, -1))
            if len(row) > 1:
                rows.append((i, row[(k + 1) % len(row)], int(k + 1 == len(row)), -1))
    rows.sort(key=lambda r: r[0])
    arcs = np.array(rows, np.int64).reshape(-1, 4)
    arc_first = np.zeros(len(x.nodes) + 1, np.int64)
    np.cumsum(np.bincount(arcs[:, 0], minlength=len(x.nodes)), out=arc_first[1:])
    senders = producers(p)
    number = {task: k for k, task in enumerate(senders)}
    edges_of: list[list[int]] = [[] for _ in senders]
    edge_bytes = np.zeros(len(x.graph.edges))
    near: list[set[int]] = [set() for _ in p.classes]
    make: list[set[int]] = [set() for _ in p.classes]
    edge_unit = [unit[e.dst] for e in x.graph.edges]
    for e, edge in watched(enumerate(x.graph.edges)):
        u, v = unit[edge.src], edge_unit[e]
        single = len(x.units[u]) == 1
        edge_bytes[e] = edge.bytes if single else edge.bytes * x.graph.repetition[edge.src]
        if u != v:
            edges_of[number[edge.src]].append(e)
        a, b = int(item[u]), int(item[v])
        if a != b:
            near[a].add(b)
            near[b].add(a)
            make[a].add(number[edge.src])
            make[b].add(number[edge.src])
    for some in edges_of:
        some.sort(key=lambda e: edge_unit[e])
    arcs_of: list[list[int]] = [[] for _ in senders]
    for k, (_, _, _, e) in enumerate(rows):
        if e >= 0 and unit[x.graph.edges[e].src] != edge_unit[e]:
            arcs_of[number[x.graph.edges[e].src]].append(k)
    apart: list[set[int]] = [set() for _ in p.classes]
    for u, v in p.apart if problem else ():
        apart[item[u]].add(int(item[v]))
        apart[item[v]].add(int(item[u]))
    host = index[platform.host]
    hop, second, wait, byte_wait = _routes(platform)
    kinds = {"link": LINK, "lane": LANE, "nobody": NOBODY}
    links, terms = platform.links, p.lane_terms if problem else ()
    always = platform.idle_w()
    limit_w = problem.limits.power_w if problem else None
    t = Tables(
        latency=latency,
        occupancy=occupancy,
        seconds=seconds,
        item=item,
        firings=firings,
        device=np.array([index[device] for device, _, _ in listed], np.int64),
        node_unit=node_unit,
        arc_tail=np.ascontiguousarray(arcs[:, 0]),
        arc_head=np.ascontiguousarray(arcs[:, 1]),
        arc_tokens=np.ascontiguousarray(arcs[:, 2]),
        arc_edge=np.ascontiguousarray(arcs[:, 3]),
        arc_first=arc_first,
        edge_unit=np.array(edge_unit, np.int64),
        edge_bytes=edge_bytes,
        task_unit=np.array([unit[s] for s in senders], np.int64),
        task_node=np.array([x.node[s, 0] for s in senders], np.int64),
        task_messages=np.array(
            [x.graph.repetition[s] if len(x.units[unit[s]]) == 1 else 1 for s in senders],
            np.int64,
        ),
        task_first=packed(edges_of)[0],
        task_edges=packed(edges_of)[1],
        sent_first=packed(arcs_of)[0],
        sent_arcs=packed(arcs_of)[1],
        near_first=packed([sorted(s) for s in near])[0],
        near=packed([sorted(s) for s in near])[1],
        make_first=packed([sorted(s) for s in make])[0],
        make=packed([sorted(s) for s in make])[1],
        host=host,
        hop=hop,
        second=second,
        up=hop[:, host].copy(),
        wait=wait,
        byte_wait=byte_wait,
        per_message=np.array([k.per_message_s for k in links], np.float64),
        per_byte=np.array([1 / k.bytes_per_s for k in links], np.float64),
        link_wait=np.array([k.latency_s for k in links], np.float64),
        paid=np.array([kinds[k.paid_by] for k in links], np.int64),
        memory=np.array(p.memory_bytes, np.float64),
        capacity=np.array([p.capacity_bytes[n] * (1 + 1e-12) for n in names], np.float64),
        width=np.array([width for _, _, width in listed], np.int64),
        room=np.array([d.width for d in platform.devices], np.int64),
        most=np.array([p.lanes[n] for n in names], np.int64),
        most_lanes=float(p.max_lanes) if problem else math.inf,
        unit_bytes=kept,
        unit_capacity=np.array([p.unit_capacity_bytes[n] * (1 + 1e-12) for n in names], np.float64),
        apart_first=packed([sorted(s) for s in apart])[0],
        apart=packed([sorted(s) for s in apart])[1],
        term_unit=np.array([u for u, _, _, _ in terms], np.int64),
        term_other=np.array([v for _, v, _, _ in terms], np.int64),
        term_s=np.array([s for _, _, s, _ in terms], np.float64),
        term_shared=np.array([shared for _, _, _, shared in terms], np.bool_),
        joules=joules,
        idle_w=np.array([platform.idle_w({n})[n] - always[n] for n in names], np.float64),
        always_w=math.fsum(always.values()),
        power_w=math.inf if limit_w is None else float(limit_w),
        longest_s=longest_s(x.graph, problem.limits) if problem else math.inf,
        frugal=problem is not None and problem.objective == "power_efficiency",
        pooled=pooled,
    )
    return Places(p, tuple((device, k) for device, k, _ in listed), t)


def lumped(b: Places) -> Tables | None:
    """Return the tables of a coarser graph: all firings of a unit follow one another, and each unit
    waits for all firings of another. Its periods are possible, as far as messages between devices
    do not matter. None if each unit fires once, or if such firings deadlock."""
    t, x = b.t, b.space.expansion
    if (t.firings == 1).all():
        return None
    unit = {task: u for u, tasks in enumerate(x.units) for task in tasks}
    rows = [(u, u, 1, -1) for u in range(len(x.units))]
    for k, e in enumerate(x.graph.edges):
        u, v = unit[e.src], unit[e.dst]
        if u != v:
            rows.append((u, v, e.tokens // (x.graph.repetition[e.src] * e.production), k))
    if len(topological(len(x.units), [(u, v) for u, v, m, _ in rows if m == 0])) < len(x.units):
        return None
    rows.sort(key=lambda r: r[0])
    arcs = np.array(rows, np.int64)
    able = np.isfinite(t.occupancy)
    more = (t.firings - 1)[:, None] * np.where(able, t.occupancy, 0.0)
    return t._replace(
        latency=t.latency + more,
        occupancy=t.occupancy + more,
        firings=np.ones_like(t.firings),
        node_unit=np.arange(len(x.units)),
        arc_tail=np.ascontiguousarray(arcs[:, 0]),
        arc_head=np.ascontiguousarray(arcs[:, 1]),
        arc_tokens=np.ascontiguousarray(arcs[:, 2]),
        arc_edge=np.ascontiguousarray(arcs[:, 3]),
        arc_first=np.searchsorted(arcs[:, 0], np.arange(len(x.units) + 1)),
        term_s=t.term_s * t.firings[t.term_unit],
    )


def scratch_of(t: Tables) -> Scratch:
    """Return new arrays, without a policy."""
    units, devices, nodes = len(t.item), len(t.up), len(t.node_unit)
    return Scratch(
        np.zeros(units),
        np.zeros(units),
        np.zeros(len(t.device) + len(t.paid)),
        np.zeros(devices),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros((len(t.task_unit), devices)),
        np.zeros(len(t.arc_edge)),
        np.full(nodes, -1, np.int64),
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
        np.zeros(devices),
        np.zeros(devices, np.int64),
        np.zeros(len(t.device)),
        np.zeros(len(t.device), np.int64),
    )
