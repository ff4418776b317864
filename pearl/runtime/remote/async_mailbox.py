"""What crosses between the lane that learns and an actor of another host, in any order.

To the actor: steps granted, with the version of the parameters and, where it is a new one, the
parameters. From it: the transitions of a step. `docs/protocol.md` says why these are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pearl.runtime.lanes.async_actor import copy_of, granted, slot_of, version
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.remote.lane_groups import LaneGroup, TaskMessages
from pearl.runtime.remote.mailbox import Traffic
from pearl.runtime.remote.messages import FIRINGS, WORDS, Message, packed, unpack
from pearl_devices import Buffers


@dataclass
class GrantMailbox:
    """Steps granted to the copy of an island, as both sides see them. told: the last ones."""

    protocol: ExecutionSchedule
    island: LaneGroup
    arrays: Buffers
    board: ControlBlock
    traffic: Traffic = field(default_factory=Traffic)
    told: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        copy = copy_of(self.protocol, self.island.lanes[0])
        assert copy is not None
        self._cells = self.board.count(granted(copy)), self.board.count(version(copy))
        acting, self._stepped = self.protocol.lanes[self.island.lanes[0]].tasks
        (self._copying,) = [t.name for t in self.protocol.graph.tasks if t.copies]
        self._names = [p.name for p in TaskMessages(self.protocol, self._copying, [acting]).parts]

    def start(self, begin: int) -> None:
        """The arrays of iteration `begin` are on both sides."""
        self.told = self._now()

    def _now(self) -> tuple[int, int]:
        steps, newest = (self.board.read(cell) for cell in self._cells)
        return steps, newest

    @property
    def ready(self) -> bool:
        return self._now()[0] > self.told[0]

    done = True

    def due(self, *, rest: bool = False) -> Iterator[Message]:
        """The message of a step that was granted since the last."""
        now = self._now()
        if now[0] > self.told[0]:
            views = self._parameters(now[1]) if now[1] != self.told[1] else []
            yield packed([FIRINGS], [np.array([*now, bool(views)], np.int64), *views])
            self.traffic.messages += 1
            self.traffic.payload_bytes += sum(v.nbytes for v in views)
            self.told = now

    def _parameters(self, number: int) -> list[Any]:
        slot = slot_of(number, self.protocol.slots[self._copying])
        return [self.arrays[f"{n}@{slot}" if slot else n] for n in self._names]

    def _head(self, message: Message) -> Any:
        head = np.zeros(3, np.int64)
        unpack(message[: 8 * WORDS + head.nbytes], [head])
        return head

    def needed(self, message: Message) -> dict[str, int]:
        """The step before is done."""
        return {self._stepped: int(self._head(message)[0]) - 1}

    def take(self, message: Message) -> None:
        """Write parameters, their version, and the grant."""
        steps, newest, new = self._head(message).tolist()
        head = np.zeros(3, np.int64)
        unpack(message, [head, *(self._parameters(newest) if new else [])])
        self.board.write(self._cells[1], newest)
        self.board.write(self._cells[0], steps)


@dataclass
class StepMailbox:
    """Steps of the copy of an island with their transitions. told: how many."""

    protocol: ExecutionSchedule
    island: LaneGroup
    arrays: Buffers
    board: ControlBlock
    traffic: Traffic = field(default_factory=Traffic)
    told: int = 0

    def __post_init__(self) -> None:
        tasks = self.protocol.lanes[self.island.lanes[0]].tasks
        self._cells = [self.board.count(t) for t in tasks]
        others = [t for t in self.protocol.graph.repetition if t not in tasks]
        sender = TaskMessages(self.protocol, tasks[1], others)
        self._views = [
            self.arrays[p.name][p.rows] if p.rows else self.arrays[p.name] for p in sender.parts
        ]

    def start(self, begin: int) -> None:
        """The arrays of iteration `begin` are on both sides."""
        self.told = self.board.read(self._cells[1])

    @property
    def ready(self) -> bool:
        return self.board.read(self._cells[1]) > self.told

    @property
    def done(self) -> bool:
        """Whether all steps were told."""
        return not self.ready

    def due(self, *, rest: bool = False) -> Iterator[Message]:
        """The message of a step done since the last."""
        stepped = self.board.read(self._cells[1])
        if stepped > self.told:
            yield packed([FIRINGS], [np.array([stepped], np.int64), *self._views])
            self.traffic.messages += 1
            self.traffic.payload_bytes += sum(v.nbytes for v in self._views)
            self.told = stepped

    def take(self, message: Message) -> None:
        """Write transitions, and count the step. One that comes a second time is passed over."""
        head = np.zeros(1, np.int64)
        unpack(message[: 8 * WORDS + head.nbytes], [head])
        if head[0] > self.board.read(self._cells[1]):
            unpack(message, [head, *self._views])
            for cell in self._cells:
                self.board.write(cell, int(head[0]))
        self.traffic.messages += 1
        self.traffic.payload_bytes += sum(v.nbytes for v in self._views)


def mails(
    protocol: ExecutionSchedule, island: LaneGroup, arrays: Buffers, board: ControlBlock
) -> tuple[GrantMailbox, StepMailbox]:
    """Both directions, as either side sees them."""
    return GrantMailbox(protocol, island, arrays, board), StepMailbox(
        protocol, island, arrays, board
    )
