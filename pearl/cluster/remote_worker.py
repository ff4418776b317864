"""`RemoteWorker`: a remote lane group as the local host sees it, one of the engine's workers.

The worker stores the arrays of the group at the last pause, and every message since. If the group
is lost, the worker binds it again, on another node if its own is gone, sends both, and the lanes
repeat their firings. Repeated messages are ignored.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pearl.cluster.async_mailbox import GrantMailbox, StepMailbox, async_mailboxes
from pearl.cluster.batching import GroupFlows
from pearl.cluster.lane_groups import LaneGroup
from pearl.cluster.lane_server import LaneClient, RemoteLostError, control_words
from pearl.cluster.mailbox import Mailbox, mailboxes
from pearl.cluster.messages import (
    CONTROL,
    FIRINGS,
    STATE,
    Message,
    header_words,
    pack,
    unpack,
)
from pearl.cluster.transport import carrier
from pearl.errors import SpecError
from pearl.runtime.child_process import ANSWER_S
from pearl.runtime.lanes.lane_runner import SLEEP_S
from pearl.runtime.lanes.workers import LaneDiedError, Measured, Worker, error_text
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import LaneError
from pearl_devices.primitives.code_cache import sources

PULL_S = 1.0
"""Longest wait of a call for messages, in seconds."""

MAX_LOG_BYTES = 256 * 2**20
"""Bytes of messages stored for a group that may be lost; beyond them the lanes pause (assumed)."""


@dataclass(frozen=True)
class RemoteGroup:
    """A remote lane group with its messages (see `RemoteLanes`).

    lane_group: the lanes.
    flows: the messages to and from the group.
    make_client: called with `lane_group` and `losses`, how often the group was lost.
    """

    lane_group: LaneGroup
    flows: GroupFlows
    make_client: Callable[..., LaneClient]

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.lane_group.lanes

    @property
    def iterations(self) -> int:
        return self.flows.iterations

    def worker(self, context: RunContext, control: ControlBlock) -> Worker:
        return RemoteWorker(context, control, self)


class RemoteWorker(Worker):
    """A worker for a remote lane group. It needs a pause once it stores `MAX_LOG_BYTES`."""

    restartable = True

    def __init__(self, context: RunContext, control: ControlBlock, group: RemoteGroup) -> None:
        self._context, self._control, self._group = context, control, group
        lane_group = self.lane_group = group.lane_group
        # The learner of an any-order plan wakes the lane of an actor, which runs elsewhere.
        mine = lane_group.lanes[0] if context.any_order else control.lanes + lane_group.number
        self._wake_event, self._sleep_cell = context.wake_events[mine], control.sleep_cell(mine)
        names = lane_group.arrays(context.protocol, context.arrays)
        self._arrays = {n: context.arrays[n] for n in names}
        self._state = lane_group.state(context.protocol, self._arrays)
        self._inbound: Mailbox | GrantMailbox
        self._outbound: Mailbox | StepMailbox
        if context.any_order:
            self._inbound, self._outbound = async_mailboxes(context, lane_group, control)
        else:
            self._inbound, self._outbound = mailboxes(context, lane_group, group.flows, control)
        self._environments: dict[str, Any] = {"at": -1, "environments": {}}
        self._failures: deque[tuple[str, int]] = deque()
        self._reported: Counter[tuple[str, int]] = Counter()  # failures since the last pause
        self._repeated: Counter[tuple[str, int]] = Counter()  # failures that replay may repeat
        self.steps_envs = any(recovery.steps_external_envs(context, n) for n in lane_group.lanes)
        self._lost, self._error, self._over, self._bound = "", "", False, False
        self._cpu_s = self._ended_cpu_s = 0.0
        self._log: list[Message] = []
        self._losses = 0
        self._sent_words: tuple[int, ...] = ()  # of the last control message
        self._sending = threading.Lock()
        self._logged_bytes = 0
        self._threads: list[threading.Thread] = []
        self._carrier = carrier(context.worker_config["spec"]["train"].get("carrier"))
        self._lane_names = ", ".join(context.protocol.lanes[n].name for n in lane_group.lanes)
        self._client = group.make_client(lane_group)

    def traffic(self) -> list[dict[str, Any]]:
        group = self.lane_group
        row: dict[str, Any] = {"host": group.host, "tasks": list(group.tasks)}
        row["carrier"] = self._carrier
        for way, mailbox in (("to", self._inbound), ("from", self._outbound)):
            row |= {f"{name}_{way}": n for name, n in asdict(mailbox.traffic).items()}
        return [row]

    @property
    def needs_pause(self) -> bool:
        return self._logged_bytes > MAX_LOG_BYTES

    # ------------------------------------------------------------------ binding and starting

    def wait_ready(self) -> None:
        unpack(self._bind(), self._state)

    def _bind(self) -> Message:
        lane_group, flows = self.lane_group, self._group.flows
        config = {
            **self._context.to_json(),
            "path": [p for p in sys.path if p],
            "sources": sources().digest,
            "number": lane_group.number,
            "host": lane_group.host,
            "lanes": lane_group.lanes,
            "tasks": lane_group.tasks,
            "layout": [(n, a.shape, a.dtype.name) for n, a in self._arrays.items()],
            "inbound": [(f.tasks, f.per_iteration, f.every) for f in flows.inbound],
            "outbound": [(f.tasks, f.per_iteration, f.every) for f in flows.outbound],
            "carrier": self._carrier,
        }
        try:
            reply = self._client.bind(config, pack([STATE], list(self._arrays.values())))
        except RemoteLostError as error:
            raise LaneDiedError(self._named(error)) from error
        self._bound = True
        return reply

    def _named(self, reason: object) -> str:
        return f"lane {self._lane_names} on host {self.lane_group.host}: {reason}"

    def begin(self) -> None:
        self._save_snapshot(None)
        self._start()

    def _save_snapshot(self, environments: Any) -> None:
        """Store the arrays of the group at a pause, and drop the messages before it."""
        control = self._control
        fired = {word: control.read(control.count_cell(word)) for word in control.tasks}
        begin = control.read(control.flush_cell)
        counts = {"fired": fired, "begin": begin, "environments": environments}
        self._snapshot = pack([STATE], list(self._arrays.values()), counts)
        self._log, self._logged_bytes = [], 0
        self._reported.clear()
        self._repeated.clear()
        for mailbox in (self._inbound, self._outbound):
            mailbox.start(begin)

    def _start(self) -> None:
        """Send the arrays of the last pause to the group, and start the threads of this worker."""
        self._inbound.traffic.state_bytes += self._snapshot.nbytes
        try:
            self._client.start(self._snapshot)
        except RemoteLostError as error:
            raise LaneDiedError(self._named(error)) from error
        self._lost, self._over, self._sent_words = "", False, ()
        loops = self._send, self._receive
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def on_pause(self) -> None:
        try:
            self._send_ready()
        except RemoteLostError as error:
            self._lost = self._lost or str(error)
        with self._sending:
            self._save_snapshot(self._environments["environments"])

    def restore_and_replay(self) -> None:
        """Bind the lost lanes again, restore their arrays, and repeat their firings since the last
        pause.

        Raises:
            LaneError: the lanes cannot be bound again.
        """
        self._stop_threads()
        self._client.kill()
        self._ended_cpu_s, self._cpu_s = self._ended_cpu_s + self._cpu_s, 0.0
        self._losses += 1
        self._repeated = self._reported.copy()
        try:
            self._client = self._group.make_client(self.lane_group, losses=self._losses)
        except SpecError as error:
            raise LaneError(self._named(error)) from error
        self._bind()
        self._start()

    # ------------------------------------------------------------------ threads

    def _send(self) -> None:
        try:
            with self._sending:
                if self._log:  # the group was lost: replay
                    self._client.push(list(self._log))
            while not self._over:
                if self._send_ready():
                    continue
                # The sleep cell is set before the last check: a later change sets the wake event.
                self._control.write(self._sleep_cell, 1)
                if not self._inbound.ready and control_words(self._control) == self._sent_words:
                    self._wake_event.wait(SLEEP_S)
                self._control.write(self._sleep_cell, 0)
        except RemoteLostError as error:
            self._lost = self._lost or str(error)
        except Exception as error:  # `raise_if_failed` raises it in the main thread
            self._error = self._error or self._named(error_text(error))

    def _send_ready(self) -> bool:
        """Send all messages that are ready. Return whether there were any."""
        with self._sending:
            messages, now = list(self._inbound.ready_messages()), control_words(self._control)
            if now != self._sent_words:
                self._sent_words = now
                messages.append(pack([CONTROL, *now]))
                self._inbound.traffic.others += 1
            if messages:
                self._log += messages
                self._logged_bytes += sum(m.nbytes for m in messages)
                self._client.push(messages)
        return bool(messages)

    def _receive(self) -> None:
        try:
            while not self._over:
                for message in self._client.pull(PULL_S):
                    self._handle_message(message)
        except RemoteLostError as error:
            self._lost = self._lost or str(error)
        except Exception as error:  # `raise_if_failed` raises it in the main thread
            self._error = self._error or self._named(error_text(error))

    def _handle_message(self, message: Message) -> None:
        control, (kind, *values) = self._control, header_words(message)
        if kind == FIRINGS:
            self._outbound.receive(message)
        elif kind == STATE:
            text = unpack(message, self._state)
            self._cpu_s = values[1] / 1e6
            self._outbound.traffic.state_bytes += message.nbytes
            self._environments = text
            for task, count in text["fired"].items():
                control.write(control.count_cell(task), count)
            for n in self.lane_group.lanes:
                control.write(control.flushed_cell(n), text["at"])
        else:
            text = unpack(message, [])
            if "error" in text:
                self._error = f"lane {text['lane']} failed: {text['error']}"
            elif "note" in text:
                self._context.log.announce(text["note"])
            else:
                self._record_env_failure(text["failure"], text["lost"])
            self._outbound.traffic.others += 1
        control.wake_sleepers(self._context.wake_events)

    def _record_env_failure(self, text: str, lost: int) -> None:
        """Record the failure of an environment, unless a repeated firing repeats it."""
        if self._repeated[text, lost] > 0:
            self._repeated[text, lost] -= 1
            return
        self._reported[text, lost] += 1
        self._failures.append((text, lost))

    def _stop_threads(self) -> None:
        """End the threads that send and receive."""
        self._over = True
        self._wake_event.set()
        for thread in self._threads:
            thread.join(timeout=ANSWER_S)
        self._threads = []

    # ------------------------------------------------------------------ as a worker

    def raise_if_failed(self) -> None:
        """Raise the error of the remote lanes, if there is one.

        Raises:
            LaneDiedError: the connection or the actor is lost.
            LaneError: a lane has failed.
        """
        if self._error:
            raise LaneError(self._error)
        if self._lost:
            raise LaneDiedError(self._named(self._lost))

    def environments(self, at: int) -> dict[str, Any]:
        """Return snapshots of the external environments at iteration `at`.

        Raises:
            LaneError: the lanes send none in time.
        """
        if not self.steps_envs:
            return {}
        if self._environments["at"] != at:
            raise LaneError(self._named("it has sent no snapshots of its environments"))
        return dict(self._environments["environments"])

    def failures(self) -> list[tuple[str, int]]:
        return [self._failures.popleft() for _ in range(len(self._failures))]

    def kill(self) -> None:
        self._client.kill()

    def cpu_s(self) -> float:
        return self._ended_cpu_s + self._cpu_s

    def join(self) -> Measured:
        self._stop_threads()
        measured: dict[str, Any] = {"times_ns": {}, "lags": {}, "cpu_s": self._cpu_s, "records": []}
        if self._bound:
            with suppress(RemoteLostError):
                measured = self._client.end()
        self._cpu_s = measured["cpu_s"]
        self._client.kill()
        return measured["times_ns"], measured["lags"], measured["records"]
