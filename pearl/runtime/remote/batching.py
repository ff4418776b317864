"""How many firings a message brings: as many as tokens allow.

Tasks whose counts go to one island are in groups, and each group has messages of its own: one for
every so many firings of its fastest task, with the counts of the others that belong to as many
iterations. Messages cost more than what is in them, so the fewest are chosen with which the lanes
still never wait for each other in a circle, as a run of their firings shows; then half as many
firings a message, where there are several, so that both sides work at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.remote.lane_groups import LaneGroup

MAX_ITERATIONS_PER_MESSAGE = 64
"""Iterations that a message brings at most (assumed: looks at losses and signals come as often)."""

MAX_ENUMERATED_FLOWS = 6
"""Flows of which every way to bundle them is tried, 203 (assumed: of 9 there are 21,147)."""

CHECK_ROUNDS = 3
"""Messages beyond all tokens after which firings that still go on are taken to go on for ever."""


@dataclass(frozen=True)
class MessageFlow:
    """The messages of some tasks to an island or from it.

    tasks: whose counts and arrays they bring.
    per_iteration: firings of each in an iteration.
    every: firings of the fastest that a message brings.
    """

    tasks: tuple[str, ...]
    per_iteration: tuple[int, ...]
    every: int = 1

    @property
    def iterations(self) -> int:
        """Iterations that a message brings, in whole ones."""
        return -(-self.every // max(self.per_iteration))

    def boundary(self, message: int, begin: int, end: int) -> list[int]:
        """Counts that message number `message`, from 0, of the segment begin … end − 1 brings."""
        fastest = max(self.per_iteration)
        return [
            min(begin * q + (message + 1) * self.every * q // fastest, end * q)
            for q in self.per_iteration
        ]

    def messages(self, begin: int, end: int) -> int:
        """Messages of a segment."""
        return -(-(end - begin) * max(self.per_iteration) // self.every)


def flow_from_json(given: Sequence[Any]) -> MessageFlow:
    """A flow by the values of its fields, as JSON has them."""
    tasks, per_iteration, every = given
    return MessageFlow(tuple(tasks), tuple(per_iteration), every)


@dataclass(frozen=True)
class GroupFlows:
    """Those of one island. into: to the island. out: from it."""

    inbound: tuple[MessageFlow, ...]
    outbound: tuple[MessageFlow, ...]

    @property
    def iterations(self) -> int:
        return max((f.iterations for f in (*self.inbound, *self.outbound)), default=0)


def plan_flows(
    protocol: ExecutionSchedule, lane_groups: Sequence[LaneGroup]
) -> tuple[GroupFlows, ...]:
    """The flows of every island."""
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
    """The flows where islands that are alike have the fewest messages on one side."""
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
    """Places of the flows that have messages in common in every way that is tried: each by itself;
    where there are many, those of one kind of kernel, as of many learners, that fire as often."""
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
    """The tasks of a side but for the numbers of copies."""
    return tuple(sorted((f.tasks[0].partition("#")[0], f.per_iteration[0]) for f in side))


def _partitions(items: list[list[int]]) -> Iterator[list[list[list[int]]]]:
    """Every way to put items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for found in _partitions(rest):
        yield [[first], *found]
        for i, group in enumerate(found):
            yield [*found[:i], [first, *group], *found[i + 1 :]]


def _as(trial: Sequence[MessageFlow], own: Sequence[MessageFlow]) -> tuple[MessageFlow, ...]:
    """A bundling of one island's flows for those of another that is like it."""
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
    """Whether the lanes go on for ever when counts cross only with these messages."""
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


def message_count(found: GroupFlows, segments: Sequence[tuple[int, int]]) -> Mapping[str, int]:
    """Messages of the segments, given by their first iteration and that after their last."""
    return {
        side: sum(f.messages(*s) for f in getattr(found, side) for s in segments)
        for side in ("inbound", "outbound")
    }
