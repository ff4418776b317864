"""Mailboxes: the counts and arrays that one host sends to another, as either host sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pearl.cluster.batching import GroupFlows, MessageFlow
from pearl.cluster.lane_groups import LaneGroup, TaskMessages
from pearl.cluster.messages import FIRINGS, WORDS, Message, header_words, pack, unpack
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.run_context import RunContext


@dataclass
class Traffic:
    """Traffic in one direction.

    messages: number of messages with firings.
    payload_bytes: bytes of the arrays in these messages.
    state_bytes: bytes of the arrays that are sent at starts and pauses.
    others: number of messages with control words, state or text.
    """

    messages: int = 0
    payload_bytes: int = 0
    state_bytes: int = 0
    others: int = 0


def mailboxes(
    context: RunContext, lane_group: LaneGroup, flows: GroupFlows, control: ControlBlock
) -> tuple[Mailbox, Mailbox]:
    """Make the mailboxes of a lane group: to the group, and from the group."""
    protocol = context.protocol
    others = [t for t in protocol.graph.repetition if t not in lane_group.tasks]
    into = {t: TaskMessages(protocol, t, lane_group.tasks) for f in flows.inbound for t in f.tasks}
    out = {t: TaskMessages(protocol, t, others) for f in flows.outbound for t in f.tasks}
    return Mailbox(context, flows.inbound, into, control), Mailbox(
        context, flows.outbound, out, control
    )


@dataclass
class Mailbox:
    """The flows of one direction, as one host sees them.

    traffic: counts of messages and bytes.
    context: the run, with the arrays of this host.
    flows: the flows, in the order of their numbers in messages.
    senders: task → its messages.
    control: the control block of this host.
    begin: first iteration of the segment.
    counts: task → count that was sent, on the host that sends; that was received, on the other.
    number: index of the next message of each flow in the segment.
    """

    context: RunContext
    flows: Sequence[MessageFlow]
    senders: Mapping[str, TaskMessages]
    control: ControlBlock
    begin: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    number: list[int] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def start(self, begin: int) -> None:
        """Begin a segment at iteration `begin`, with the counts in the control block."""
        self.begin, self.number = begin, [0 for _ in self.flows]
        self.counts = {t: self.control.read(self.control.count_cell(t)) for t in self.tasks}

    @property
    def tasks(self) -> list[str]:
        """The tasks whose firings the messages bring."""
        return [t for f in self.flows for t in f.tasks]

    @property
    def end(self) -> int:
        """The iteration before which the segment ends, as far as that is decided."""
        flush = self.control.read(self.control.flush_cell)
        return (
            flush
            if flush > self.begin
            else max(self.begin, self.control.read(self.control.end_cell))
        )

    @property
    def done(self) -> bool:
        """Whether the end of the segment is decided and all its firings were sent."""
        end, q = self.control.read(self.control.flush_cell), self.context.protocol.graph.repetition
        return end > self.begin and all(n >= end * q[t] for t, n in self.counts.items())

    @property
    def ready(self) -> bool:
        """Whether a message can be sent now."""
        return any(self._next(place) for place in range(len(self.flows)))

    def ready_messages(self, *, rest: bool = False) -> Iterator[Message]:
        """Yield the messages that are ready. rest: send all complete firings of parked lanes."""
        for place in range(len(self.flows)):
            while to := self._next(place, rest=rest):
                yield self._message(place, to)
                self.number[place] += 1

    def _next(self, place: int, *, rest: bool = False) -> list[int]:
        """Return the counts that the next message of a flow brings; empty if it must wait."""
        flow, end = self.flows[place], self.end
        has = [self.control.read(self.control.count_cell(t)) for t in flow.tasks]
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
            for view in self.senders[task].views(self.context.arrays, first, end)
        ]
        message = pack([FIRINGS, place], [np.array([*before, *to], np.int64), *views])
        self.counts.update(zip(flow.tasks, to, strict=True))
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in views)
        return message

    def count_ranges(self, message: Message) -> tuple[list[int], list[int]]:
        """Return the counts of a message's tasks before and after its firings."""
        tasks = len(self.flows[header_words(message)[1]].tasks)
        counts = np.zeros(2 * tasks, np.int64)
        unpack(message[: 8 * WORDS + counts.nbytes], [counts])
        return counts[:tasks].tolist(), counts[tasks:].tolist()

    def required_counts(self, message: Message) -> dict[str, int]:
        """Return the counts that the sender had seen before it wrote the arrays of a message.

        Once the receiver has these counts, the slots that the message overwrites are free.
        """
        flow, (before, to) = self.flows[header_words(message)[1]], self.count_ranges(message)
        required: dict[str, int] = {}
        for task, first, end in zip(flow.tasks, before, to, strict=True):
            for other, count in (
                self.senders[task].required_counts(end - 1).items() if end > first else ()
            ):
                if other not in self.senders:
                    required[other] = max(count, required.get(other, 0))
        return required

    def receive(self, message: Message) -> None:
        """Write the arrays of a message, then its counts.

        The counts are last: a lane that sees a count finds the arrays of that firing. Firings that
        were received before are ignored: a restarted lane repeats them.
        """
        flow, (before, to) = self.flows[header_words(message)[1]], self.count_ranges(message)
        counts = np.zeros(2 * len(flow.tasks), np.int64)
        views: list[Any] = [counts]
        for task, first, end in zip(flow.tasks, before, to, strict=True):
            received, sender = self.counts[task], self.senders[task]
            repeated = sender.views(self.context.arrays, first, min(end, max(first, received)))
            views += [np.empty_like(v) for v in repeated]
            views += sender.views(self.context.arrays, max(first, received), end)
            sender.stamp_versions(
                self.context.arrays,
                max(first, received),
                end,
                self.context.span,
                self._learns(task),
            )
        unpack(message, views)
        for task, end in zip(flow.tasks, to, strict=True):
            if end > self.counts[task]:
                self.counts[task] = end
                self.control.write(self.control.count_cell(task), end)
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in views[1:])

    def _learns(self, task: str) -> bool:
        return self.context.protocol.graph.origin(task)[0] in self.context.learning
