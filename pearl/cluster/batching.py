"""Batching: how many firings a message between hosts brings.

Tasks whose counts go to one remote lane group are bundled into flows. A flow sends one message
after a fixed number of firings of its fastest task; the message also brings the counts of the
flow's other tasks for as many iterations. A message costs more than its content, so this module
chooses the fewest messages with which the lanes never deadlock; a simulation of their firings shows
that. Then it halves the firings per message, if there are several, so that both hosts work at the
same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.cluster.lane_groups import LaneGroup
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule

MAX_ITERATIONS_PER_MESSAGE = 64
"""Most iterations per message (assumed: losses and signals are checked as often)."""

MAX_ENUMERATED_FLOWS = 6
"""Most flows of which every bundling is tried: 6 have 203, 9 would have 21,147 (assumed)."""

CHECK_ROUNDS = 3
"""Messages beyond all tokens after which the simulation assumes that firings never stop."""


@dataclass(frozen=True)
class MessageFlow:
    """The messages of some tasks to a remote lane group, or from the group.

    tasks: tasks whose counts and arrays the messages bring.
    per_iteration: firings of each task in an iteration.
    every: firings of the fastest task that a message brings.
    """

    tasks: tuple[str, ...]
    per_iteration: tuple[int, ...]
    every: int = 1

    @property
    def iterations(self) -> int:
        """Iterations that a message brings, rounded up."""
        return -(-self.every // max(self.per_iteration))

    def boundary(self, message: int, begin: int, end: int) -> list[int]:
        """Return the counts that message `message`, from 0, of segment begin … end − 1 brings."""
        fastest = max(self.per_iteration)
        return [
            min(begin * q + (message + 1) * self.every * q // fastest, end * q)
            for q in self.per_iteration
        ]

    def messages(self, begin: int, end: int) -> int:
        """Return the number of messages of a segment."""
        return -(-(end - begin) * max(self.per_iteration) // self.every)


def flow_from_json(given: Sequence[Any]) -> MessageFlow:
    """Make a flow from the values of its fields."""
    tasks, per_iteration, every = given
    return MessageFlow(tuple(tasks), tuple(per_iteration), every)


@dataclass(frozen=True)
class GroupFlows:
    """The flows of one remote lane group. inbound: to the group. outbound: from the group."""

    inbound: tuple[MessageFlow, ...]
    outbound: tuple[MessageFlow, ...]

    @property
    def iterations(self) -> int:
        return max((f.iterations for f in (*self.inbound, *self.outbound)), default=0)


def plan_flows(
    protocol: ExecutionSchedule, lane_groups: Sequence[LaneGroup]
) -> tuple[GroupFlows, ...]:
    """Plan the flows of every remote lane group."""
    found = [
        GroupFlows(
            _apart(protocol, i.inbound_tasks(protocol)),
            _apart(protocol, i.outbound_tasks(protocol)),
        )
        for i in lane_groups
    ]
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, f in enumerate(found):
        alike.setdefault((_named(f.inbound), _named(f.outbound)), []).append(place)
    for places in alike.values():
        for side in ("inbound", "outbound"):
            found = _coarsest(protocol, lane_groups, found, places, side)
    return tuple(GroupFlows(_halved(f.inbound), _halved(f.outbound)) for f in found)


def _coarsest(
    protocol: ExecutionSchedule,
    lane_groups: Sequence[LaneGroup],
    found: list[GroupFlows],
    places: Sequence[int],
    side: str,
) -> list[GroupFlows]:
    """Return the flows with the fewest messages in a direction, for groups that are alike."""
    best, least = found, math.inf
    apart: tuple[MessageFlow, ...] = getattr(found[places[0]], side)
    for parts in _partitions(_together(protocol, apart)):
        groups = [[i for several in part for i in several] for part in parts]
        bundled = tuple(_bundle([apart[i] for i in group]) for group in groups)
        while True:
            tried = list(found)
            for place in places:
                own: tuple[MessageFlow, ...] = getattr(found[place], side)
                tried[place] = replace(tried[place], **{side: _as(bundled, own)})
            if not is_deadlock_free(protocol, lane_groups, tried):
                break
            messages = sum(max(f.per_iteration) / f.every for f in bundled)
            if messages < least:
                best, least = tried, messages
            if not bundled or max(f.iterations for f in bundled) >= MAX_ITERATIONS_PER_MESSAGE:
                break
            bundled = tuple(replace(f, every=2 * f.every) for f in bundled)
    return best


def _together(protocol: ExecutionSchedule, apart: Sequence[MessageFlow]) -> list[list[int]]:
    """Return the flows (by index) that stay together in every bundling that is tried. Each is
    alone, unless there are many: then flows of one kernel kind and rate are together."""
    if len(apart) <= MAX_ENUMERATED_FLOWS:
        return [[i] for i in range(len(apart))]
    found: dict[object, list[int]] = {}
    for i, f in enumerate(apart):
        kind = protocol.graph.task(f.tasks[0]).kernel.kind
        found.setdefault((kind, f.per_iteration), []).append(i)
    return list(found.values())


def _bundle(flows: Sequence[MessageFlow]) -> MessageFlow:
    return MessageFlow(
        tuple(t for f in flows for t in f.tasks), tuple(q for f in flows for q in f.per_iteration)
    )


def _apart(protocol: ExecutionSchedule, tasks: Sequence[str]) -> tuple[MessageFlow, ...]:
    return tuple(MessageFlow((t,), (protocol.graph.repetition[t],)) for t in tasks)


def _named(side: Sequence[MessageFlow]) -> tuple[object, ...]:
    """Return the tasks of a direction without the numbers of replicas."""
    return tuple(sorted((f.tasks[0].partition("#")[0], f.per_iteration[0]) for f in side))


def _partitions(items: list[list[int]]) -> Iterator[list[list[list[int]]]]:
    """Yield every partition of the items."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for found in _partitions(rest):
        yield [[first], *found]
        for i, group in enumerate(found):
            yield [*found[:i], [first, *group], *found[i + 1 :]]


def _as(trial: Sequence[MessageFlow], own: Sequence[MessageFlow]) -> tuple[MessageFlow, ...]:
    """Apply the bundling of one group's flows to the flows of another group that is like it."""
    names = sorted(own, key=lambda f: (f.tasks[0].partition("#")[0], f.per_iteration[0]))
    first = [t for f in trial for t in f.tasks]
    order = sorted(first, key=lambda t: t.partition("#")[0])
    mine = {theirs: f.tasks[0] for theirs, f in zip(order, names, strict=True)}
    return tuple(replace(f, tasks=tuple(mine[t] for t in f.tasks)) for f in trial)


def _halved(side: Sequence[MessageFlow]) -> tuple[MessageFlow, ...]:
    return tuple(replace(f, every=max(1, f.every // 2)) for f in side)


def is_deadlock_free(
    protocol: ExecutionSchedule, lane_groups: Sequence[LaneGroup], found: Sequence[GroupFlows]
) -> bool:
    """Whether the lanes never deadlock if counts are sent only with these messages."""
    q = protocol.graph.repetition
    place = {n: i.number for i in lane_groups for n in i.lanes}
    longest = max((f.iterations for f in found), default=1)
    tokens = max(e.tokens // (e.consumption * q[e.dst]) for e in protocol.graph.edges)
    ahead = max(f.offset for k in protocol.lanes for f in k.firings)
    most = ahead + longest
    end = CHECK_ROUNDS * longest + tokens + 2 * most + 2
    seen: dict[int | None, dict[str, int]] = {
        side: dict.fromkeys(q, 0) for side in (None, *(i.number for i in lane_groups))
    }
    turn = [-max(f.offset for f in k.firings) for k in protocol.lanes]
    entry = [0 for _ in protocol.lanes]
    sent = {(i, out, n): 0 for i, f in enumerate(found) for out, n in _numbered(f)}
    moved = True
    while moved:
        moved = False
        for lane, k in enumerate(protocol.lanes):
            counts = seen[place.get(lane)]
            while turn[lane] < end:
                f = k.firings[entry[lane]]
                if turn[lane] + f.offset >= 0:
                    if any(counts[w.task] < w.base + turn[lane] * w.step for w in f.waits):
                        break
                    for task, base in f.done.items():
                        counts[task] = base + turn[lane] * q[task]
                moved = True
                entry[lane] = (entry[lane] + 1) % len(k.firings)
                turn[lane] += entry[lane] == 0
        for (i, out, n), message in sent.items():
            flow = (found[i].outbound if out else found[i].inbound)[n]
            there, here = (i, None) if out else (None, i)
            target = flow.boundary(message, 0, 2**62)
            if all(seen[there][t] >= c for t, c in zip(flow.tasks, target, strict=True)):
                seen[here].update(zip(flow.tasks, target, strict=True))
                sent[i, out, n] = message + 1
                moved = True
    return min(turn) >= end - most


def _numbered(f: GroupFlows) -> list[tuple[bool, int]]:
    return [(False, n) for n in range(len(f.inbound))] + [(True, n) for n in range(len(f.outbound))]
