"""Two steady iterations of a plan as events: calls on lanes and messages between them.

The start times come from the periodic schedule of the plan: every call starts when its inputs are
available and its lane is free, and repeats after one iteration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from pearl.graph.cycle_ratio import Arc
from pearl.graph.period import start_times
from pearl.planning.plans import Channel, Plan
from pearl_devices import Platform

SHORTEST_S, LONGEST_S = 1e-12, 1e12
"""Iterations outside these limits come from a damaged file."""

Node = tuple[str, str, int]
"""Lane, name of a task with its replica, or of a transfer, and number of the firing."""


@dataclass(frozen=True)
class TimedCall:
    """One call of a lane, or one message over a link.

    lane: of the call; for a message, the link.
    task: of the call, with `#` and its number for a replica; for a measured fused call, its members
        joined with +; for a message, the task that sends it.
    start_s, end_s: seconds from the beginning of the first iteration shown.
    to: the device that receives a message; empty for a call.
    """

    lane: str
    task: str
    start_s: float
    end_s: float
    to: str = ""


@dataclass(frozen=True)
class SteadySchedule:
    """The events of one iteration, which repeat every `period_s`.

    numbers: for each event, the number of its firing in an iteration.
    """

    period_s: float
    events: tuple[TimedCall, ...]
    numbers: tuple[int, ...] = ()

    def within(self, iterations: int = 2) -> list[TimedCall]:
        """Return the events of `iterations` iterations from 0 on, cut at both ends, by start
        time."""
        end, found = iterations * self.period_s, []
        for e in self.events:
            first = e.start_s % self.period_s
            for k in range(-1, iterations):
                start = first + k * self.period_s
                stop = start + e.end_s - e.start_s
                if stop > 0 and start < end:
                    found.append(TimedCall(e.lane, e.task, max(start, 0.0), min(stop, end), e.to))
        return sorted(found, key=lambda e: e.start_s)

    def busy(self, lane: str) -> list[tuple[float, float]]:
        """Return the busy spans of a lane in two iterations, with adjacent spans joined."""
        spans: list[tuple[float, float]] = []
        for e in self.within():
            if e.lane == lane:
                if spans and e.start_s <= spans[-1][1] + 1e-9 * self.period_s:
                    spans[-1] = spans[-1][0], max(spans[-1][1], e.end_s)
                else:
                    spans.append((e.start_s, e.end_s))
        return spans


def schedule_of(plan: Plan, platform: Platform | None = None) -> SteadySchedule | None:
    """Return the steady schedule of a plan; None if a time is missing or all times are 0.

    platform: of the plan, for the latencies of its links; without it, a message takes the time in
        which its link is busy.
    """
    return _Timing(plan, platform).schedule()


@dataclass(frozen=True)
class _Timing:
    plan: Plan
    platform: Platform | None

    @cached_property
    def nodes(self) -> list[Node]:
        found = []
        for lane in self.plan.lanes:
            seen: Counter[str] = Counter()
            for e in lane.order:
                name = e.task if not lane.width else f"{e.task}#{e.replica}"
                found.append((lane.lane, name, seen[name]))
                seen[name] += 1
        return found

    @cached_property
    def number(self) -> dict[tuple[str, int], int]:
        return {(name, firing): i for i, (_, name, firing) in enumerate(self.nodes)}

    @cached_property
    def firings(self) -> Counter[str]:
        return Counter(name for _, name, _ in self.nodes)

    @cached_property
    def seconds(self) -> list[tuple[float, float]]:
        """Return latency and lane time of each node."""
        placed = {f"{t.task}#{t.replica}": t for t in self.plan.tasks}
        sizes = {k.lane: len(k.order) for k in self.plan.lanes}
        loads = {k.lane: k.load for k in self.plan.lanes}
        links = {k.name: k for k in self.platform.links} if self.platform else {}
        found = []
        for lane, name, _ in self.nodes:
            t = placed.get(name)
            if t is not None:
                found.append((max(t.seconds, t.occupancy_s), t.occupancy_s))
                continue
            taken = loads[lane] * self.plan.period_s / max(sizes[lane], 1)
            link = links.get(lane)
            delay = taken if link is None else max(taken - link.per_message_s, 0.0) + link.latency_s
            found.append((delay, taken))
        return found

    def schedule(self) -> SteadySchedule | None:
        if not self.nodes or not SHORTEST_S < self.plan.period_s < LONGEST_S:
            return None
        arcs = [*self._rings(), *(a for e in self.plan.edges for a in self._waits(e))]
        start = start_times(len(self.nodes), arcs, self.plan.period_s)
        origin = self._origin(start)
        whole = {t.task for t in self.plan.tasks if t.replicas == 1}
        links = {k.lane for k in self.plan.lanes if not k.width}
        events = []
        for i, (lane, name, _) in enumerate(self.nodes):
            task, _, to = name.partition(">") if lane in links else (name, "", "")
            stem = task.rpartition("#")[0]
            task = stem if stem in whole else task
            latency, taken = self.seconds[i]
            begin = start[i] - origin
            end = begin + (latency if to else taken)
            events.append(TimedCall(lane, task, begin, end, to))
        numbers = tuple(number for _, _, number in self.nodes)
        return SteadySchedule(self.plan.period_s, tuple(events), numbers)

    def _origin(self, start: list[float]) -> float:
        """Return the first start on the busiest lane, which begins an iteration."""
        lanes = [k for k in self.plan.lanes if k.width and k.order]
        if not lanes:
            return 0.0
        busiest = max(lanes, key=lambda k: k.load).lane
        return min(s for s, (lane, _, _) in zip(start, self.nodes, strict=True) if lane == busiest)

    def _rings(self) -> list[Arc]:
        """Return the arcs of the cyclic order of each lane."""
        arcs: list[Arc] = []
        first = 0
        for lane in self.plan.lanes:
            n = len(lane.order)
            for i, entry in enumerate(lane.order):
                after = lane.order[(i + 1) % n]
                tokens = after.offset - entry.offset + (i + 1 == n)
                arcs.append((first + i, first + (i + 1) % n, self.seconds[first + i][1], tokens))
            first += n
        return arcs

    def _waits(self, e: Channel) -> list[Arc]:
        """Return the arcs into each firing of an edge's consumer."""
        src, dst = f"{e.src}#{e.src_replica}", f"{e.dst}#{e.dst_replica}"
        if src == dst or src not in self.firings or dst not in self.firings:
            return []
        if e.production < 1 or e.consumption < 1:  # from a damaged file
            return []
        device = next((t.device for t in self.plan.tasks if t.task == e.dst), "")
        sent = f"{e.src}>{device}"
        q, messages = self.firings[src], self.firings[sent] if e.link else 0
        arcs: list[Arc] = []
        for j in range(self.firings[dst]):
            whole = self.firings[dst] * e.consumption
            ahead = whole if e.reach is None else e.reach
            needed = min(e.consumption * (j + 1) + ahead, whole)
            i = -((e.tokens - needed) // e.production) - 1
            there, here = self.number[dst, j], self.number[src, i % q]
            latency, lag = self.seconds[here][0], -(i // q)
            if messages and q % messages == 0:
                message = self.number[sent, (i % q) * messages // q]
                arcs.append((here, message, latency, 0))
                here, latency = message, self.seconds[message][0]
            arcs.append((here, there, latency, lag))
        return arcs
