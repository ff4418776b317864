"""`LaneServer`: the lanes of a remote lane group, in a process on their host, with its arrays."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pearl.cluster.async_mailbox import GrantMailbox, StepMailbox, async_mailboxes
from pearl.cluster.batching import GroupFlows, flow_from_json
from pearl.cluster.lane_groups import LaneGroup
from pearl.cluster.mailbox import Mailbox, mailboxes
from pearl.cluster.messages import (
    CONTROL,
    FIRINGS,
    STATE,
    TEXT,
    Message,
    header_words,
    pack,
    unpack,
)
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.async_actor import AsyncActor
from pearl.runtime.lanes.engine import bind_lane, restore_envs, shared_counters
from pearl.runtime.lanes.lane_runner import (
    POLL_S,
    SLEEP_S,
    SPINS,
    SPINS_OVERSUBSCRIBED,
    LaneRunner,
    StopRequested,
)
from pearl.runtime.lanes.workers import error_text, raise_when_stopped
from pearl.runtime.protocol.binding import Lags, add_lags
from pearl.runtime.protocol.control_block import PARKED, ControlBlock, wake_all
from pearl.runtime.protocol.run_context import RunContext
from pearl_devices.primitives.code_cache import sources
from pearl_devices.system import host_system

JOIN_S = 5.0
"""Seconds within which a lane ends after the stop cell is set; then it is abandoned (assumed)."""

READ_S = 120.0
"""Seconds within which lanes that repeat firings read a message (assumed)."""


class RemoteLostError(Exception):
    """A remote lane group cannot be reached any more; the text says why."""


class LaneClient(Protocol):
    """The local host's client of a `LaneServer`; every call has a time limit.

    Raises:
        RemoteLostError: the server, its process or its host has died, or does not answer.
    """

    def bind(self, config: Mapping[str, Any], arrays: Message) -> Message:
        """Bind the lanes' calls. Returns the arrays that binding has written."""

    def start(self, arrays: Message) -> None:
        """Begin a segment with these arrays, counts and environments."""

    def push(self, messages: Sequence[Message]) -> None:
        """Send messages."""

    def pull(self, timeout_s: float) -> Sequence[Message]:
        """Receive the next messages; none if none come within `timeout_s`."""

    def end(self) -> dict[str, Any]:
        """Let the lanes end, and return their measurements."""

    def kill(self) -> None:
        """End the server at once, whatever it does."""


class LaneServer:
    """The lanes of a remote lane group, on their host. It has the methods of `LaneClient`.

    `push` and `pull` may run at the same time, each called by one thread.
    """

    def bind(self, config: Mapping[str, Any], arrays: Message) -> Message:
        """See `LaneClient.bind`.

        Raises:
            RuntimeError: this host has other sources of the kernels than the local host.
        """
        if config["path"] is not None:
            sys.path[:] = [*config["path"], *(p for p in sys.path if p not in config["path"])]
        if config["sources"] != sources().digest:
            raise RuntimeError(
                "this host has other sources of PEARL's kernels than the host that trains, and "
                "would not compute the same; install the same version of PEARL here"
            )
        self.arrays: dict[str, Any] = {
            name: np.zeros(shape, dtype) for name, shape, dtype in config["layout"]
        }
        unpack(arrays, list(self.arrays.values()))
        self.context = RunContext.from_json(config, self.arrays)
        lanes, tasks = tuple(config["lanes"]), tuple(config["tasks"])
        self.lane_group = LaneGroup(config["number"], config["host"], lanes, tasks)
        self._make_control_block()
        crowded = len(lanes) > len(host_system.usable_cpus())
        spins, poll = SPINS_OVERSUBSCRIBED if crowded else SPINS, raise_when_stopped(self.control)
        self.runners = [bind_lane(self.context, n, self.control, poll, spins=spins) for n in lanes]
        self.environments = {n: e for r in self.runners for n, e in r.environments.items()}
        self._texts: deque[dict[str, Any]] = deque()
        self._failed = False
        restart = self.context.restart_envs
        for env in self.environments.values():
            env.on_failure = external_envs.failure_sender(self._send_status, restart=restart)
        for text in restore_envs(self.context, self.environments):
            self._send_status(note=text)
        self.inbound: Mailbox | GrantMailbox
        self.outbound: Mailbox | StepMailbox
        if self.context.any_order:
            self.inbound, self.outbound = async_mailboxes(
                self.context, self.lane_group, self.control
            )
        else:
            sides = (tuple(map(flow_from_json, config[side])) for side in ("inbound", "outbound"))
            self.inbound, self.outbound = mailboxes(
                self.context, self.lane_group, GroupFlows(*sides), self.control
            )
        self._flushed, self._threads = 0, list[threading.Thread]()
        return pack([STATE], self._state())

    def _make_control_block(self) -> None:
        """Make the control block of the lane group, which has one more sleep cell: its messages."""
        context = self.context
        counters, lanes = shared_counters(context), len(context.protocol.lanes)
        size = ControlBlock.size(len(counters), lanes, 1)
        self.cells = np.zeros(size + 8, np.int64)
        begin = -(self.cells.ctypes.data // 8) % 8  # so that each cell is one cache line
        self.control = ControlBlock(counters, lanes, self.cells[begin : begin + size], 1)
        context.wake_events = [host_system.new_wake_event() for _ in range(self.control.sleepers)]
        # The thread that sends sleeps in the place of the learner, which an actor wakes, or else
        # in the place after all lanes.
        self._sender = context.protocol.home if context.any_order else lanes
        self._counted = [] if context.any_order else self.lane_group.tasks

    def _state(self) -> list[Any]:
        return self.lane_group.state(self.context.protocol, self.arrays)

    def _send_status(self, **text: Any) -> None:
        self._texts.append(text)
        self.context.wake_events[self._sender].set()

    def start(self, arrays: Message) -> None:
        """See `LaneClient.start`."""
        counts = unpack(arrays, list(self.arrays.values()))
        begin = counts["begin"]
        self.control.reset(counts["fired"], begin, limit=begin)
        if counts["environments"]:
            lost = external_envs.restore(self.environments, counts["environments"])
            if lost:  # other hosts have used the steps that it would do again
                raise ValueError("; ".join(lost))
        self._flushed = begin
        for mailbox in (self.inbound, self.outbound):
            mailbox.start(begin)
        self._threads = [
            threading.Thread(target=self._run, args=(r,), daemon=True, name=r.name)
            for r in self.runners
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, runner: LaneRunner | AsyncActor) -> None:
        host_system.work_for_user()
        try:
            runner.serve()
        except StopRequested:
            return
        except Exception as error:  # the local host reports it
            self._failed = True
            self._send_status(lane=runner.name, error=error_text(error))

    def push(self, messages: Sequence[Message]) -> None:
        control = self.control
        for message in messages:
            kind, *values = header_words(message)
            if kind == FIRINGS:
                self._wait_for_slots(message)
                self.inbound.receive(message)
            elif kind == CONTROL:
                for cell, value in zip(control.control_cells, values, strict=False):
                    control.write(cell, value)
        control.wake_sleepers(self.context.wake_events)

    def _wait_for_slots(self, message: Message) -> None:
        """Wait until the lanes have read the slots that a message overwrites.

        The sender sends a message only when this is so. But after the group was lost, it sends the
        messages since the last pause again, all at once.
        """
        control, own = self.control, set(self.lane_group.tasks)
        needed = {t: n for t, n in self.inbound.required_counts(message).items() if t in own}
        until_s = time.monotonic() + READ_S
        while any(control.read(control.count_cell(t)) < n for t, n in needed.items()):
            wake_all(self.context.wake_events)
            if control.read(control.stop_cell) or self._failed:
                return
            if time.monotonic() > until_s:
                raise RuntimeError(f"the lanes have read no message for {READ_S:.0f} s")
            time.sleep(POLL_S)

    def pull(self, timeout_s: float) -> list[Message]:
        control, mine = self.control, self.control.sleep_cell(self._sender)
        until = time.monotonic() + timeout_s
        while True:
            messages = self._next()
            left_s = until - time.monotonic()
            if messages or left_s <= 0:
                return messages
            control.write(mine, 1)  # before the last check: a later change sets the wake event
            messages = self._next()
            if not messages:
                self.context.wake_events[self._sender].wait(min(SLEEP_S, left_s))
            control.write(mine, 0)
            if messages:
                return messages

    def _next(self) -> list[Message]:
        """Return the messages that are ready; at a pause, the state of the group behind them."""
        control = self.control
        messages = [pack([TEXT], text=self._texts.popleft()) for _ in range(len(self._texts))]
        # Lanes publish counts before they flush: read in the other order, no firing is left out.
        flushed = [control.read(control.flushed_cell(n)) for n in self.lane_group.lanes]
        messages += self.outbound.ready_messages()
        if min(flushed) > self._flushed and self.outbound.done:
            self._flushed = control.read(control.flush_cell)
            messages.append(self._paused(self._flushed))
            self.outbound.start(self._flushed)
        elif self._flushed >= 0 and flushed and all(n == PARKED for n in flushed):
            messages += self.outbound.ready_messages(rest=True)
            self._flushed = PARKED
            messages.append(self._paused(PARKED))
        return messages

    def _paused(self, at: int) -> Message:
        cpu_us = int(time.process_time() * 1e6)
        # No flow brings the counts of tasks whose results nobody else reads.
        fired = {t: self.control.read(self.control.count_cell(t)) for t in self._counted}
        text = {"at": at, "environments": external_envs.snapshot(self.environments), "fired": fired}
        return pack([STATE, at, cpu_us], self._state(), text)

    def end(self) -> dict[str, Any]:
        self.control.write(self.control.stop_cell, 1)
        wake_all(self.context.wake_events)
        for thread in self._threads:
            thread.join(timeout=JOIN_S)
        times: dict[str, list[int]] = {}
        lags: Lags = {}
        for runner in self.runners:
            times |= runner.times_ns
            add_lags(lags, runner.lags)
        # the clock of this host is another, so its calls have no place in the timeline of the run
        records = [{**r.record(), "kept": []} for r in self.runners]
        cpu_s = time.process_time()
        return {"times_ns": times, "lags": lags, "records": records, "cpu_s": cpu_s}

    def kill(self) -> None:
        self.end()


def control_words(control: ControlBlock) -> tuple[int, ...]:
    """Return the words of a control message: the cells that the local host sets."""
    return tuple(control.read(cell) for cell in control.control_cells)
