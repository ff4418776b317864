"""`LaneServer`: an island's lanes, in a process on the island's host, over arrays of their own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from typing import Protocol as Interface

import numpy as np

from pearl.planning.plans import load_plan
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.async_actor import AsyncActor
from pearl.runtime.lanes.async_actor import words as any_order_words
from pearl.runtime.lanes.engine import Engine
from pearl.runtime.lanes.lane_runner import (
    CROWDED,
    POLL_S,
    SLEEP_S,
    SPINS,
    LaneRunner,
    StopRequested,
)
from pearl.runtime.lanes.workers import error_text
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.control_block import PARKED, ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.remote import async_mailbox
from pearl.runtime.remote.async_mailbox import GrantMailbox, StepMailbox
from pearl.runtime.remote.batching import Flows, flow_of
from pearl.runtime.remote.lane_groups import LaneGroup
from pearl.runtime.remote.mailbox import Mailbox, mailboxes
from pearl.runtime.remote.messages import (
    CONTROL,
    FIRINGS,
    STATE,
    TEXT,
    Message,
    packed,
    unpack,
    words,
)
from pearl.spec.reading import load_on
from pearl.spec.user_code import build_graph
from pearl_devices import platform_json
from pearl_devices.primitives.code_cache import sources

JOIN_S = 5.0
"""Seconds in which a lane that was told to stop ends, or is left behind (assumed)."""

READ_S = 120.0
"""Seconds in which lanes that do their firings again read a message (assumed)."""


class LostError(Exception):
    """An island cannot be reached any more; the text says why."""


class LaneClient(Interface):
    """How the host that trains reaches an outpost; every call is bounded in time.

    Raises:
        LostError: the outpost, its process or its host is gone, or does not answer.
    """

    def bind(self, about: Mapping[str, Any], arrays: Message) -> Message:
        """Bind the lanes' calls. Returns the arrays that they have written by that."""

    def start(self, arrays: Message) -> None:
        """Begin a segment with these arrays, counts and environments."""

    def push(self, messages: Sequence[Message]) -> None:
        """Hand messages over."""

    def pull(self, timeout_s: float) -> Sequence[Message]:
        """The next messages; none where there are none within `timeout_s`."""

    def end(self) -> dict[str, Any]:
        """Let the lanes end; what they have measured."""

    def kill(self) -> None:
        """End the outpost at once, whatever it does."""


class LaneServer:
    """The lanes of an island. Its methods are those of `LaneClient`; `push` and `pull` may be
    called at the same time, each by one caller."""

    def bind(self, about: Mapping[str, Any], arrays: Message) -> Message:
        if about["path"] is not None:
            sys.path[:] = [*about["path"], *(p for p in sys.path if p not in about["path"])]
        if about["sources"] != sources().digest:
            raise RuntimeError(
                "its sources of pearl's kernels are not those of the host that trains, and other "
                "ones would not compute the same; install the same version of pearl there"
            )
        system = load_on(platform_json.from_json(about["platform"]), about["spec"])
        protocol = self.protocol = ExecutionSchedule(load_plan(about["plan"]), build_graph(system))
        jobs = single_lane.jobs(protocol.plan, protocol.graph, system.platform, emulate=False)
        self.island = LaneGroup(
            about["number"], about["host"], tuple(about["lanes"]), tuple(about["tasks"])
        )
        self.arrays: dict[str, Any] = {
            name: np.zeros(shape, dtype) for name, shape, dtype in about["layout"]
        }
        unpack(arrays, list(self.arrays.values()))
        board = self._board(protocol, about)
        given = jobs, self.arrays, board, self.bells
        span = WorkRange(about["warm"], about["total"], about["drained"])
        crowded = len(self.island.lanes) > len(os.sched_getaffinity(0))
        residency, spins = Residency(jobs, self.arrays), CROWDED if crowded else SPINS
        self.runners: list[LaneRunner | AsyncActor] = []
        for number in self.island.lanes:
            if about["any_order"]:
                mine = residency, self._look
                self.runners.append(AsyncActor(protocol, number, *given, *mine, spins=spins))
            else:
                how = about["learning"], span, residency, self._look
                jitter_s = about["jitter_s"]
                self.runners.append(
                    LaneRunner(protocol, number, *given, *how, spins=spins, jitter_s=jitter_s)
                )
        self.environments = {n: e for r in self.runners for n, e in r.environments.items()}
        self._texts: deque[dict[str, Any]] = deque()
        self._failed = False
        for env in self.environments.values():
            env.on_failure = lambda text, lost: self._say(failure=text, lost=lost)
        if about["restored"]:
            external_envs.restore(self.environments, about["restored"])
        self.into: Mailbox | GrantMailbox
        self.out: Mailbox | StepMailbox
        if about["any_order"]:
            sides = async_mailbox.mails(protocol, self.island, self.arrays, self.board)
            self.into, self.out = sides
        else:
            flows = Flows(*(tuple(map(flow_of, about[side])) for side in ("into", "out")))
            seen = self.arrays, self.board, span, about["learning"]
            self.into, self.out = mailboxes(protocol, self.island, flows, *seen)
        self._told, self._threads = 0, list[threading.Thread]()
        return packed([STATE], self._state())

    def _board(self, protocol: ExecutionSchedule, about: Mapping[str, Any]) -> ControlBlock:
        """The counts of the island, which has a bell for every lane and one for its messages."""
        shared = any_order_words(protocol) if about["any_order"] else Engine.words(protocol)
        size = ControlBlock.size(len(shared), len(protocol.lanes), 1)
        self.cells = np.zeros(size + 8, np.int64)
        begin = -(self.cells.ctypes.data // 8) % 8  # a cache line a cell
        cells = self.cells[begin : begin + size]
        self.board = ControlBlock(shared, len(protocol.lanes), cells, 1)
        self.bells = [WakeEvent() for _ in range(self.board.sleepers)]
        self._mine = protocol.home if about["any_order"] else len(protocol.lanes)
        return self.board

    def _state(self) -> list[Any]:
        return self.island.state(self.protocol, self.arrays)

    def _say(self, **text: Any) -> None:
        self._texts.append(text)
        self.bells[self._mine].ring()

    def _look(self) -> None:
        if self.board.read(self.board.stop):
            raise StopRequested

    def start(self, arrays: Message) -> None:
        about = unpack(arrays, list(self.arrays.values()))
        board, begin = self.board, about["begin"]
        cells = {board.count(task): firings for task, firings in about["fired"].items()}
        cells |= {board.flushed(n): begin for n in range(board.lanes)}
        cells |= {board.limit: begin, board.flush: begin, board.end: begin}
        for cell, value in cells.items():
            board.write(cell, value)
        if about["environments"]:
            external_envs.restore(self.environments, about["environments"])
        self._told = begin
        for mail in (self.into, self.out):
            mail.start(begin)
        self._threads = [
            threading.Thread(target=self._run, args=(r,), daemon=True, name=r.name)
            for r in self.runners
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, runner: LaneRunner | AsyncActor) -> None:
        try:
            runner.follow()
        except StopRequested:
            return
        except Exception as error:  # told by the host that trains, which names the lane
            self._failed = True
            self._say(lane=runner.name, error=error_text(error))

    def push(self, messages: Sequence[Message]) -> None:
        board = self.board
        for message in messages:
            kind, *told = words(message)
            if kind == FIRINGS:
                self._until_free(message)
                self.into.take(message)
            elif kind == CONTROL:
                for cell, value in zip(_control(board), told, strict=False):
                    board.write(cell, value)
        board.wake_sleepers(self.bells)

    def _until_free(self, message: Message) -> None:
        """Wait until the slots of a message have been read. That is so when a message first comes;
        of messages that come a second time, after the island was lost, many come at once."""
        board, mine = self.board, set(self.island.tasks)
        needed = {t: n for t, n in self.into.needed(message).items() if t in mine}
        until_s = time.monotonic() + READ_S
        while any(board.read(board.count(t)) < n for t, n in needed.items()):
            for bell in self.bells:
                bell.ring()
            if board.read(board.stop) or self._failed:
                return
            if time.monotonic() > until_s:
                raise RuntimeError(f"its lanes have read no message for {READ_S:.0f} s")
            time.sleep(POLL_S)

    def pull(self, timeout_s: float) -> list[Message]:
        board, mine = self.board, self.board.sleeps(self._mine)
        until = time.monotonic() + timeout_s
        while True:
            found = self._next()
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            board.write(mine, 1)
            found = self._next()
            if not found:
                self.bells[self._mine].sleep(min(SLEEP_S, left_s))
            board.write(mine, 0)
            if found:
                return found

    def _next(self) -> list[Message]:
        board = self.board
        found = [packed([TEXT], text=self._texts.popleft()) for _ in range(len(self._texts))]
        told = [board.read(board.flushed(n)) for n in self.island.lanes]
        found += self.out.due()
        if min(told) > self._told and self.out.done:
            self._told = board.read(board.flush)
            found.append(self._paused(self._told))
            self.out.start(self._told)
        elif self._told >= 0 and told and all(t == PARKED for t in told):
            found += self.out.due(rest=True)
            self._told = PARKED
            found.append(self._paused(PARKED))
        return found

    def _paused(self, at: int) -> Message:
        cpu_us = int(time.process_time() * 1e6)
        text = {"at": at, "environments": external_envs.snapshot(self.environments)}
        return packed([STATE, at, cpu_us], self._state(), text)

    def end(self) -> dict[str, Any]:
        self.board.write(self.board.stop, 1)
        for bell in self.bells:
            bell.ring()
        for thread in self._threads:
            thread.join(timeout=JOIN_S)
        times: dict[str, list[int]] = {}
        lags: dict[str, dict[int, int]] = {}
        for runner in self.runners:
            times |= runner.times_ns
            for name, seen in runner.lags.items():
                mine = lags.setdefault(name, {})
                for lag, count in seen.items():
                    mine[lag] = mine.get(lag, 0) + count
        return {"times_ns": times, "lags": lags, "cpu_s": time.process_time()}

    def kill(self) -> None:
        self.end()


def _control(board: ControlBlock) -> list[int]:
    """Cells that the host that trains sets on an island, in the order of a message of control."""
    return [board.limit, board.flush, board.stop, board.park, board.end]


def controlled(board: ControlBlock) -> tuple[int, ...]:
    """What a message of control says: the cells of a board that the host that trains sets."""
    return tuple(board.read(c) for c in _control(board))
