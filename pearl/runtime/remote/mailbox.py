"""One side's counts and arrays on their way to the other, and what has come from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.remote.batching import Flow, Flows
from pearl.runtime.remote.lane_groups import LaneGroup, TaskMessages
from pearl.runtime.remote.messages import FIRINGS, WORDS, Message, packed, unpack, words
from pearl_devices import Buffers


@dataclass
class Traffic:
    """What has crossed in one direction.

    messages: with firings. payload_bytes: of the arrays in them. state_bytes: of arrays at starts
    and pauses. others: messages of control, state and text.
    """

    messages: int = 0
    payload_bytes: int = 0
    state_bytes: int = 0
    others: int = 0


def mailboxes(
    protocol: ExecutionSchedule,
    island: LaneGroup,
    flows: Flows,
    arrays: Buffers,
    board: ControlBlock,
    span: WorkRange,
    learning: Sequence[str],
) -> tuple[Mailbox, Mailbox]:
    """Both directions of an island, to it and from it, as either side sees them."""
    others = [t for t in protocol.graph.repetition if t not in island.tasks]
    into = {t: TaskMessages(protocol, t, island.tasks) for f in flows.into for t in f.tasks}
    out = {t: TaskMessages(protocol, t, others) for f in flows.out for t in f.tasks}
    given = arrays, board, span, learning
    return Mailbox(protocol, flows.into, into, *given), Mailbox(protocol, flows.out, out, *given)


@dataclass
class Mailbox:
    """The flows of one direction, as one side sees them.

    counts: of the side that sends, those that were sent; of the other, those that came.
    begin: first iteration of the segment.
    number: the next message of each flow in the segment.
    """

    protocol: ExecutionSchedule
    flows: Sequence[Flow]
    senders: Mapping[str, TaskMessages]
    arrays: Buffers
    board: ControlBlock
    span: WorkRange
    learning: Sequence[str]
    begin: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    number: list[int] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def start(self, begin: int) -> None:
        """A segment from iteration `begin` on, by the counts on the board."""
        self.begin, self.number = begin, [0 for _ in self.flows]
        self.counts = {t: self.board.read(self.board.count(t)) for t in self.tasks}

    @property
    def tasks(self) -> list[str]:
        return [t for f in self.flows for t in f.tasks]

    @property
    def end(self) -> int:
        """The iteration before which the segment ends."""
        flush = self.board.read(self.board.flush)
        return flush if flush > self.begin else max(self.begin, self.board.read(self.board.end))

    @property
    def done(self) -> bool:
        """Whether all firings of the segment were sent, and it is known to end there."""
        end, q = self.board.read(self.board.flush), self.protocol.graph.repetition
        return end > self.begin and all(n >= end * q[t] for t, n in self.counts.items())

    @property
    def ready(self) -> bool:
        """Whether a message can be sent now."""
        return any(self._next(place) for place in range(len(self.flows)))

    def due(self, *, rest: bool = False) -> Iterator[Message]:
        """The messages that can be sent now. rest: with all complete firings, of parked lanes."""
        for place in range(len(self.flows)):
            while to := self._next(place, rest=rest):
                yield self._message(place, to)
                self.number[place] += 1

    def _next(self, place: int, *, rest: bool = False) -> list[int]:
        """The counts that the next message of a flow brings; none if it cannot be sent now."""
        flow, end = self.flows[place], self.end
        has = [self.board.read(self.board.count(t)) for t in flow.tasks]
        before = [self.counts[t] for t in flow.tasks]
        while True:
            to = has if rest else flow.boundary(self.number[place], self.begin, end)
            if any(h < t for h, t in zip(has, to, strict=True)):
                return []
            if any(b < t for b, t in zip(before, to, strict=True)):
                return [max(b, t) for b, t in zip(before, to, strict=True)]
            if rest or to == flow.boundary(self.number[place] + 1, self.begin, end):
                return []
            self.number[place] += 1

    def _message(self, place: int, to: Sequence[int]) -> Message:
        flow = self.flows[place]
        before = [self.counts[t] for t in flow.tasks]
        views = [
            view
            for task, first, end in zip(flow.tasks, before, to, strict=True)
            for view in self.senders[task].views(self.arrays, first, end)
        ]
        message = packed([FIRINGS, place], [np.array([*before, *to], np.int64), *views])
        self.counts.update(zip(flow.tasks, to, strict=True))
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in views)
        return message

    def counted(self, message: Message) -> tuple[list[int], list[int]]:
        """The counts of a message's tasks before and after its firings."""
        tasks = len(self.flows[words(message)[1]].tasks)
        counts = np.zeros(2 * tasks, np.int64)
        unpack(message[: 8 * WORDS + counts.nbytes], [counts])
        return counts[:tasks].tolist(), counts[tasks:].tolist()

    def needed(self, message: Message) -> dict[str, int]:
        """Counts of the side that takes a message that its sender had seen: the slots are free."""
        flow, (before, to) = self.flows[words(message)[1]], self.counted(message)
        found: dict[str, int] = {}
        for task, first, end in zip(flow.tasks, before, to, strict=True):
            for other, count in self.senders[task].needed(end - 1).items() if end > first else ():
                if other not in self.senders:
                    found[other] = max(count, found.get(other, 0))
        return found

    def take(self, message: Message) -> None:
        """Write the arrays of a message, then its counts. Firings that came before are passed over:
        a lane that is started again does them again."""
        flow, (before, to) = self.flows[words(message)[1]], self.counted(message)
        counts = np.zeros(2 * len(flow.tasks), np.int64)
        views: list[Any] = [counts]
        for task, first, end in zip(flow.tasks, before, to, strict=True):
            have, sender = self.counts[task], self.senders[task]
            old = sender.views(self.arrays, first, min(end, max(first, have)))
            views += [np.empty_like(v) for v in old]
            views += sender.views(self.arrays, max(first, have), end)
            sender.mark(self.arrays, max(first, have), end, self.span, self._learns(task))
        unpack(message, views)
        for task, end in zip(flow.tasks, to, strict=True):
            if end > self.counts[task]:
                self.counts[task] = end
                self.board.write(self.board.count(task), end)
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in views[1:])

    def _learns(self, task: str) -> bool:
        return self.protocol.graph.origin(task)[0] in self.learning
