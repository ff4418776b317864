"""The timed graph of an assignment, with transfers, loads, order bound and energy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pearl.errors import SpecError
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import Expansion
from pearl.graph.task_graph import Edge
from pearl.planning.costs import CostTable, Mode
from pearl.planning.spans import spans_s
from pearl.time_limit import watched
from pearl_devices import Link

Orders = Mapping[str, tuple[tuple[int, int], ...]]
"""Lane or link → its ring: (node of the timed graph, offset in iterations) in execution order."""


@dataclass(frozen=True)
class Transfer:
    """The transfer of one task over one link.

    messages: messages per iteration.
    size_bytes: bytes of each message.
    least_bytes: the smallest payload that continues to a further hop.
    """

    task: str
    to: str
    link: Link
    size_bytes: float
    messages: int
    before: tuple[str, str] | None = None
    least_bytes: float = math.inf

    @property
    def occupancy_s(self) -> float:
        """Seconds of one message that occupy its payer, the link or a lane."""
        return self.link.per_message_s + self.size_bytes / self.link.bytes_per_s

    @property
    def energy_j(self) -> float:
        """Joules of an iteration."""
        return self.messages * self.size_bytes * self.link.energy_j_per_byte


def delay_s(link: Link, size_bytes: float) -> float:
    """Return the seconds that a message adds to a cycle."""
    return link.latency_s + size_bytes / link.bytes_per_s


@dataclass(frozen=True)
class Assignment:
    """The mode of every unit of an expansion and the number of its lane on the mode's device.

    expansion, costs: the graph by firings, and the table of its modes.
    modes: mode of each unit.
    lanes: lane of each unit.
    """

    expansion: Expansion
    costs: CostTable
    modes: tuple[Mode, ...]
    lanes: tuple[int, ...]

    def lane(self, unit: int) -> str:
        return f"{self.modes[unit].device}.{self.lanes[unit]}"

    @cached_property
    def unit_of(self) -> dict[str, int]:
        return {t: u for u, unit in enumerate(self.expansion.units) for t in unit}

    @cached_property
    def _device(self) -> dict[str, str]:
        return {t: self.modes[u].device for t, u in self.unit_of.items()}

    def device_of(self, task: str) -> str:
        return self._device[task]

    def place_of(self, task: str) -> tuple[str, int]:
        """Return device and number of the lane of a task."""
        u = self.unit_of[task]
        return self.modes[u].device, self.lanes[u]

    @cached_property
    def unit_bytes(self) -> dict[tuple[str, int], float]:
        """Device and number of a lane → bytes that its modes keep on each of its units."""
        kept: dict[tuple[str, int], float] = {}
        for mode, lane in zip(self.modes, self.lanes, strict=True):
            kept[mode.device, lane] = kept.get((mode.device, lane), 0.0) + mode.unit_bytes
        return kept

    def share_lane(self, unit: int, other: int) -> bool:
        """Return whether two units run on one lane."""
        mine, theirs = self.modes[unit].device, self.modes[other].device
        return mine == theirs and self.lanes[unit] == self.lanes[other]

    @cached_property
    def extra_s(self) -> tuple[float, ...]:
        """Seconds added to a firing of each unit: pair terms, which apply to modes of single tasks
        and not to fused calls, and lane terms.

        Raises:
            SpecError: the pair terms of a task add up to less than minus its time.
        """
        key = {
            unit[0]: self.modes[u].key
            for u, unit in enumerate(self.expansion.units)
            if len(unit) == 1
        }
        extra = [0.0] * len(self.modes)
        for ((a, a_key), (b, b_key)), seconds in self.costs.pair_extra_s.items():
            if key.get(a) == a_key and key.get(b) == b_key:
                extra[self.unit_of[a]] += seconds
        extra = [seconds + more for seconds, more in zip(extra, self.lane_extra_s, strict=True)]
        for u, seconds in enumerate(extra):
            if self.modes[u].estimate.occupancy_s + seconds < -1e-15:
                raise SpecError(
                    f"pair terms of task {self.expansion.units[u][0]!r} on {self.modes[u].device} "
                    f"add up to {seconds} s; it takes {self.modes[u].estimate.occupancy_s} s, "
                    "and its time must stay at least 0"
                )
        return tuple(extra)

    @cached_property
    def lane_extra_s(self) -> tuple[float, ...]:
        """Seconds that lane terms add to a firing of each unit; for a fused call, to the call."""
        x, extra = self.expansion, [0.0] * len(self.modes)
        for a, b, seconds, shared in self.costs.lane_terms:
            u, w = self.unit_of[a], self.unit_of[b]
            if u != w and self.share_lane(u, w) == shared:
                extra[u] += seconds * (x.graph.repetition[a] if len(x.units[u]) > 1 else 1)
        return tuple(extra)

    def latency_s(self, unit: int) -> float:
        return max(0.0, self.modes[unit].estimate.latency_s + self.extra_s[unit])

    def occupancy_s(self, unit: int) -> float:
        return max(0.0, self.modes[unit].estimate.occupancy_s + self.extra_s[unit])

    def payload(self, edge: Edge) -> tuple[float, int]:
        """Return bytes of one message of an edge's source, and messages per iteration. A fused call
        sends the output of all its firings as one message."""
        q = self.expansion.graph.repetition[edge.src]
        single = len(self.expansion.units[self.unit_of[edge.src]]) == 1
        return (edge.bytes, q) if single else (edge.bytes * q, 1)

    def route(self, edge: Edge) -> tuple[Link, ...]:
        if self.unit_of[edge.src] == self.unit_of[edge.dst]:
            return ()
        return self.costs.platform.route(self.device_of(edge.src), self.device_of(edge.dst))

    @cached_property
    def hops(self) -> dict[tuple[str, str], Transfer]:
        """Transfers by (task, destination device). Consumers on one device share a transfer, at the
        size of the largest; a message for two devices behind the host is uploaded once."""
        transfers: dict[tuple[str, str], Transfer] = {}
        host = self.costs.platform.host
        for edge in self.expansion.graph.edges:
            route = self.route(edge)
            size, messages = self.payload(edge)
            stops = (
                [self.device_of(edge.dst)] if len(route) == 1 else [host, self.device_of(edge.dst)]
            )
            before = None
            for link, to in zip(route, stops, strict=False):
                old = transfers.get((edge.src, to))
                largest = max(size, old.size_bytes) if old else size
                least = min(size, old.least_bytes) if old else size
                transfers[edge.src, to] = Transfer(
                    edge.src, to, link, largest, messages, before, least
                )
                before = (edge.src, to)
        return transfers

    @cached_property
    def copying_s(self) -> tuple[float, ...]:
        """Unit → seconds that transfers paid by lanes add to the occupancy of each firing.

        A copy that leaves a device belongs to its producer, one per firing. A copy that enters a
        device belongs to the first consumer there, in the order of the graph's tasks, in equal
        shares over its firings. For a link between two devices other than the host, the sender
        pays.
        """
        added = [0.0] * len(self.modes)
        paid = {key: hop for key, hop in self.hops.items() if hop.link.paid_by == "lane"}
        entered: dict[tuple[str, str], int] = {}
        for edge in self.expansion.graph.edges:
            u, to = self.unit_of[edge.dst], self.device_of(edge.dst)
            if (edge.src, to) in paid and self.device_of(edge.src) != to:
                entered[edge.src, to] = min(u, entered.get((edge.src, to), u))
        host = self.costs.platform.host
        for (task, to), hop in paid.items():
            if hop.before or self.device_of(task) == host:
                u = entered[task, to]
                added[u] += hop.messages * hop.occupancy_s / self.expansion.firings(u)
            else:
                added[self.unit_of[task]] += (
                    hop.messages * hop.occupancy_s / self.expansion.firings(self.unit_of[task])
                )
        return tuple(added)

    @cached_property
    def loads_s(self) -> dict[str, float]:
        """Seconds of an iteration that occupy each lane, and each link that pays for itself."""
        busy: dict[str, list[float]] = {}
        for u, copying in enumerate(self.copying_s):
            seconds = self.expansion.firings(u) * (self.occupancy_s(u) + copying)
            busy.setdefault(self.lane(u), []).append(seconds)
        for hop in self.hops.values():
            if hop.link.paid_by == "link":
                busy.setdefault(hop.link.name, []).append(hop.messages * hop.occupancy_s)
        return {name: math.fsum(row) for name, row in busy.items()}

    @cached_property
    def idle_power_w(self) -> float:
        """Power that devices draw all the time: the host, devices that stay on when unused, and
        devices in use."""
        return math.fsum(self.idle_w.values())

    @cached_property
    def idle_w(self) -> dict[str, float]:
        """Device → its part of `idle_power_w`."""
        return self.costs.platform.idle_w({m.device for m in self.modes})

    @cached_property
    def dynamic_j(self) -> float:
        """Energy of one iteration above idle: firings and transfers."""
        firings = [
            self.expansion.firings(u) * m.estimate.energy_j for u, m in enumerate(self.modes)
        ]
        return math.fsum([*firings, *(h.energy_j for h in self.hops.values())])

    @cached_property
    def timed(self) -> TimedGraph:
        """Its firings and transfers, before its lanes have an order."""
        return _timed_graph(self)

    def paced_s(self, period_s: float, power_w: float | None) -> float:
        """Return the period at which average power stays within power_w; infinite if idling exceeds
        it."""
        if power_w is None or self.dynamic_j + self.idle_power_w * period_s <= power_w * period_s:
            return period_s
        spare = power_w - self.idle_power_w
        return max(period_s, self.dynamic_j / spare) if spare > 0 else math.inf

    def energy_j(self, period_s: float) -> float:
        return self.idle_power_w * period_s + self.dynamic_j


@dataclass(frozen=True)
class TimedGraph:
    """The timed graph of an assignment, before its lanes have an order.

    assignment: the source of the times.
    latency_s, occupancy_s: seconds of each firing until its result, and on its lane.
    names: (task, unit joined by +, or `src>device`; firing) of each node, firings of tasks first.
        Copies that a lane or nobody pays for are no nodes: their time is in arcs, and a lane's
        payment in its occupancy_s.
    arcs: dependences. lanes: lane or link → its nodes.
    """

    assignment: Assignment
    names: tuple[tuple[str, int], ...]
    latency_s: tuple[float, ...]
    occupancy_s: tuple[float, ...]
    arcs: tuple[Arc, ...]
    lanes: Mapping[str, tuple[int, ...]]

    @cached_property
    def loads_s(self) -> dict[str, float]:
        """Seconds of an iteration that occupy each lane and link."""
        return {k: math.fsum(self.occupancy_s[i] for i in v) for k, v in self.lanes.items()}

    @cached_property
    def raised_arcs(self) -> tuple[Arc, ...]:
        """The arcs, with at least the occupancy of the first of two nodes on one lane: if the
        second starts after the first has started, the lane has finished the first by then."""
        lane_of = {i: lane for lane, nodes in self.lanes.items() for i in nodes}
        return tuple(
            (s, d, max(w, self.occupancy_s[s]) if w > 0 and lane_of[s] == lane_of[d] else w, m)
            for s, d, w, m in self.arcs
        )

    @cached_property
    def order_bound_s(self) -> float:
        """A lower bound of the period for any order of the lanes: max(loads, maximum cycle ratio),
        with the firings of each window one after another on each lane, and with long firings
        between those of a task that fires often."""
        ratio, _ = howard(len(self.names), [*self.raised_arcs, *self._window_arcs()])
        return max(ratio, *self.loads_s.values(), *spans_s(self))

    def _window_arcs(self) -> Iterator[Arc]:
        """Yield for each window and lane the least time between the window's ends.

        This is the time of the lane's firings in the window, plus the first unit if it runs on
        another lane. Copies that a lane pays for are not counted, because a copy may continue after
        the result is available.
        """
        a = self.assignment
        lanes = [(m.device, k) for m, k in zip(a.modes, a.lanes, strict=True)]
        for window in a.expansion.windows:
            busy: dict[tuple[str, int], float] = {}
            for u, firings in window.firings:
                seconds = (firings - (u == window.last)) * a.occupancy_s(u)
                busy[lanes[u]] = busy.get(lanes[u], 0.0) + seconds
            for lane, seconds in busy.items():
                if lanes[window.first] != lane:
                    seconds += a.latency_s(window.first)
                yield window.begin, window.end, seconds, 0

    def ring(self, orders: Orders) -> list[Arc]:
        """Return the arcs that lane orders add: one token around each ring, shifted by the
        offsets."""
        arcs: list[Arc] = []
        for order in orders.values():
            for i, (a, ahead) in enumerate(order):
                b, next_ahead = order[(i + 1) % len(order)]
                tokens = next_ahead - ahead + (i + 1 == len(order))
                arcs.append((a, b, self.occupancy_s[a], tokens))
        return arcs


def build_timed_graph(assignment: Assignment) -> TimedGraph:
    """Return the timed graph of an assignment, which the assignment keeps."""
    return assignment.timed


def _timed_graph(assignment: Assignment) -> TimedGraph:
    """Return firings and transfers as nodes; edges, and transfers between devices, as arcs.

    A token to another device is a message even if the edge carries no bytes: it costs the link's
    latency in cycles and its per-message cost in the load. A consumer waits for its own bytes of a
    shared transfer.
    """
    x = assignment.expansion
    names = [("+".join(x.units[u]), f) for u, f in x.nodes]
    latency = [assignment.latency_s(u) for u, _ in x.nodes]
    occupancy = [assignment.occupancy_s(u) + assignment.copying_s[u] for u, _ in x.nodes]
    lanes: dict[str, list[int]] = {}
    for i, (u, _) in watched(enumerate(x.nodes)):
        lanes.setdefault(assignment.lane(u), []).append(i)
    arcs: list[Arc] = []
    sent: dict[tuple[str, str, int], tuple[int, float]] = {}  # copy → node, seconds to its start
    hops = sorted(assignment.hops.items(), key=lambda item: item[1].before is not None)
    for (task, to), hop in hops:
        for f in watched(range(hop.messages)):
            if hop.before is None:
                src = x.node[task, f]
                begin = src, latency[src]
            else:
                src, wait = sent[*hop.before, f]
                earlier = assignment.hops[hop.before].link
                begin = src, wait + delay_s(earlier, hop.least_bytes)
            if hop.link.paid_by != "link":
                sent[task, to, f] = begin
                continue
            i = len(names)
            names.append((f"{task}>{to}", f))
            latency.append(delay_s(hop.link, hop.size_bytes))
            occupancy.append(hop.occupancy_s)
            lanes.setdefault(hop.link.name, []).append(i)
            arcs.append((begin[0], i, begin[1], 0))
            sent[task, to, f] = i, 0.0
    before = -1
    for src, dst, tokens, e in watched(x.arcs):
        if e != before:
            before, edge = e, x.graph.edges[e]
            route, size = assignment.route(edge), assignment.payload(edge)[0]
            if route:
                task, to = edge.src, assignment.device_of(edge.dst)
                last = assignment.hops[task, to]
                last_s = delay_s(last.link, size)
                whole_s = math.fsum(delay_s(link, size) for link in route)
        if not route:
            arcs.append((src, dst, latency[src], tokens))
            continue
        f = x.nodes[src][1]
        node, wait = sent[task, to, f]
        arcs.append((node, dst, wait + last_s, tokens))
        if last.before and size > last.least_bytes:
            node, wait = sent[*last.before, f]
            arcs.append((node, dst, wait + whole_s, tokens))
    return TimedGraph(
        assignment,
        tuple(names),
        tuple(latency),
        tuple(occupancy),
        tuple(_strongest(arcs)),
        {lane: tuple(nodes) for lane, nodes in lanes.items()},
    )


def _strongest(arcs: list[Arc]) -> list[Arc]:
    """One arc for each pair of nodes and number of tokens: the longest."""
    most: dict[tuple[int, int, int], float] = {}
    for s, d, w, m in watched(arcs):
        most[s, d, m] = max(w, most.get((s, d, m), 0.0))
    return [(s, d, w, m) for (s, d, m), w in most.items()]


def channel_arcs(x: Expansion, edge: Edge, capacity: int) -> list[tuple[int, int, int]]:
    """Return the arcs (src node, dst node, tokens) that make a producer wait while its channel is
    full; empty within a fused call."""
    if edge.production == edge.consumption == x.graph.repetition[edge.src] == 1:
        src, dst = x.node[edge.dst, 0], x.node[edge.src, 0]
        inside = src == dst and len(x.units[x.nodes[src][0]]) > 1
        return [] if inside else [(src, dst, capacity - edge.tokens)]
    back = Edge(edge.dst, edge.src, edge.consumption, edge.production, capacity - edge.tokens)
    return [(s, d, m) for s, d, m in x.arcs_of(back) if s != d or len(x.units[x.nodes[s][0]]) == 1]
