"""Mailboxes between the asynchronous learner and an actor on another host.

Messages to the actor bring granted steps, the version of the parameters and, if that version is
new, the parameters. Messages from the actor bring the transitions of a step. `docs/protocol.md`
explains why these are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pearl.cluster.lane_groups import LaneGroup, TaskMessages
from pearl.cluster.mailbox import Traffic
from pearl.cluster.messages import FIRINGS, WORDS, Message, pack, unpack
from pearl.runtime.lanes.async_actor import copy_of, granted_counter, slot_of, version_counter
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.run_context import RunContext


@dataclass
class GrantMailbox:
    """Steps granted to the actor of a lane group, as either host sees them.

    sent: the steps granted and the version of the parameters in the last message.
    """

    context: RunContext
    lane_group: LaneGroup
    control: ControlBlock
    traffic: Traffic = field(default_factory=Traffic)
    sent: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        copy = copy_of(self.context.protocol, self.lane_group.lanes[0])
        assert copy is not None
        self._cells = (
            self.control.count_cell(granted_counter(copy)),
            self.control.count_cell(version_counter(copy)),
        )
        acting, self._stepped = self.context.protocol.lanes[self.lane_group.lanes[0]].tasks
        (self._copying,) = [t.name for t in self.context.protocol.graph.tasks if t.copies]
        self._names = [
            p.name for p in TaskMessages(self.context.protocol, self._copying, [acting]).parts
        ]

    def start(self, begin: int) -> None:
        """Begin a segment: both hosts have the arrays of iteration `begin`."""
        self.sent = self._now()

    def _now(self) -> tuple[int, int]:
        steps, newest = (self.control.read(cell) for cell in self._cells)
        return steps, newest

    @property
    def ready(self) -> bool:
        return self._now()[0] > self.sent[0]

    done = True

    def ready_messages(self, *, rest: bool = False) -> Iterator[Message]:
        """Yield a message if a step was granted since the last one."""
        now = self._now()
        if now[0] > self.sent[0]:
            views = self._parameters(now[1]) if now[1] != self.sent[1] else []
            yield pack([FIRINGS], [np.array([*now, bool(views)], np.int64), *views])
            self.traffic.messages += 1
            self.traffic.payload_bytes += sum(v.nbytes for v in views)
            self.sent = now

    def _parameters(self, number: int) -> list[Any]:
        slot = slot_of(number, self.context.protocol.slots[self._copying])
        return [self.context.arrays[f"{n}@{slot}" if slot else n] for n in self._names]

    def _head(self, message: Message) -> Any:
        head = np.zeros(3, np.int64)
        unpack(message[: 8 * WORDS + head.nbytes], [head])
        return head

    def required_counts(self, message: Message) -> dict[str, int]:
        """Return the counts that free the place of a message: the step before is done."""
        return {self._stepped: int(self._head(message)[0]) - 1}

    def receive(self, message: Message) -> None:
        """Write the parameters, then their version, then the grant, so that an actor that sees the
        grant finds the others."""
        steps, newest, new = self._head(message).tolist()
        head = np.zeros(3, np.int64)
        unpack(message, [head, *(self._parameters(newest) if new else [])])
        self.control.write(self._cells[1], newest)
        self.control.write(self._cells[0], steps)


@dataclass
class StepMailbox:
    """Steps of the actor of a lane group with their transitions. sent: steps in all messages."""

    context: RunContext
    lane_group: LaneGroup
    control: ControlBlock
    traffic: Traffic = field(default_factory=Traffic)
    sent: int = 0

    def __post_init__(self) -> None:
        tasks = self.context.protocol.lanes[self.lane_group.lanes[0]].tasks
        self._cells = [self.control.count_cell(t) for t in tasks]
        others = [t for t in self.context.protocol.graph.repetition if t not in tasks]
        sender = TaskMessages(self.context.protocol, tasks[1], others)
        self._views = [
            self.context.arrays[p.name][p.rows] if p.rows else self.context.arrays[p.name]
            for p in sender.parts
        ]

    def start(self, begin: int) -> None:
        """Begin a segment: both hosts have the arrays of iteration `begin`."""
        self.sent = self.control.read(self._cells[1])

    @property
    def ready(self) -> bool:
        return self.control.read(self._cells[1]) > self.sent

    @property
    def done(self) -> bool:
        """Whether all steps were sent."""
        return not self.ready

    def ready_messages(self, *, rest: bool = False) -> Iterator[Message]:
        """Yield a message if a step was done since the last one."""
        stepped = self.control.read(self._cells[1])
        if stepped > self.sent:
            yield pack([FIRINGS], [np.array([stepped], np.int64), *self._views])
            self.traffic.messages += 1
            self.traffic.payload_bytes += sum(v.nbytes for v in self._views)
            self.sent = stepped

    def receive(self, message: Message) -> None:
        """Write the transitions, then count the step. A repeated message is ignored."""
        head = np.zeros(1, np.int64)
        unpack(message[: 8 * WORDS + head.nbytes], [head])
        if head[0] > self.control.read(self._cells[1]):
            unpack(message, [head, *self._views])
            for cell in self._cells:
                self.control.write(cell, int(head[0]))
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in self._views)


def async_mailboxes(
    context: RunContext, lane_group: LaneGroup, control: ControlBlock
) -> tuple[GrantMailbox, StepMailbox]:
    """Make the mailboxes of an actor: to the actor, and from the actor."""
    return GrantMailbox(context, lane_group, control), StepMailbox(context, lane_group, control)
