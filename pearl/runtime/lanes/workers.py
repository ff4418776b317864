"""Workers: the threads or processes that run the lanes that this thread does not run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pearl.runtime import cpu_wait
from pearl.runtime.child_process import ANSWER_S, Answer, ChildProcess
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.lane_runner import StopRequested
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import LaneError
from pearl.waits import naming
from pearl_devices.system import host_system

READY_S = 120.0
"""Seconds within which a worker is ready: it imports, binds and may compile (assumed)."""

GRACE_S = 1.0
"""Seconds beyond the time limit of environments after which their worker is ended (assumed)."""

Measured = tuple[Mapping[str, list[int]], Lags, Sequence[Mapping[str, Any]]]
"""Name of a call → its times in ns; the histograms of lags; where the time of each lane went, as
`LaneRecorder.to_json` says."""


def raise_when_stopped(control: ControlBlock) -> Callable[[], None]:
    """Return a `poll` of a worker's lane: it raises StopRequested once the stop cell is set."""

    def poll() -> None:
        if control.read(control.stop_cell):
            raise StopRequested

    return poll


class LaneDiedError(LaneError):
    """The process of a lane has ended, by a signal or by itself, without an error message."""


class Worker:
    """Interface between the engine and lanes in another thread, another process or on another host.

    restartable: the worker can `restore_and_replay` after its lanes were lost.
    steps_envs: whether its lanes step external environments.
    """

    restartable = False
    steps_envs = False

    def wait_ready(self) -> None:
        """Wait until the calls are bound.

        Raises:
            LaneError: the calls cannot be bound, or not in time.
        """

    def begin(self) -> None:
        """Let the lane follow the iteration limit."""

    def raise_if_failed(self) -> None:
        """Check the lane.

        Raises:
            LaneError: the lane has failed.
            LaneDiedError: the process or the host of the lane is lost.
        """

    def environments(self, at: int) -> dict[str, Any]:
        """Return snapshots of the lane's external environments at iteration `at`.

        Raises:
            LaneError: the worker has not sent them.
        """
        return {}

    def failures(self) -> list[tuple[str, int]]:
        """Return the failures of environments since the last call: text, transitions lost."""
        return []

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        """Describe why the lane must be ended: a step of an environment exceeds `limit_s`; else
        None.

        stalled_s: seconds in which the lane completed nothing although it had all its tokens.
        """
        if not self.steps_envs or stalled_s < 1.5 * limit_s + GRACE_S:
            return None
        return f"an environment of this lane has not answered for {stalled_s:.1f} s"

    def kill(self) -> None:
        """End the lane at once, whatever it does."""

    def cpu_s(self) -> float:
        """Return the CPU-seconds that are not counted for this process."""
        return 0.0

    @property
    def thread(self) -> cpu_wait.Thread | None:
        """The thread that runs the lane; None before it has begun."""
        return None

    def restore_and_replay(self) -> None:
        """Restart with the arrays of the last pause, and repeat the firings since then.

        Raises:
            LaneError: the lanes cannot be restarted.
        """
        raise NotImplementedError

    def on_pause(self) -> None:
        """Take note that all lanes are at the same iteration and their arrays are on this host."""

    @property
    def needs_pause(self) -> bool:
        """Whether the lanes should pause soon, so that a lost lane has less to repeat."""
        return False

    def traffic(self) -> list[dict[str, Any]]:
        """Return messages and bytes to and from the lanes of another host (see `Run.traffic`)."""
        return []

    def join(self) -> Measured:
        """Wait until the lane has ended, and return its measurements."""
        raise NotImplementedError


class ThreadWorker(Worker):
    """A lane in a thread. make_runner: makes the lane, given the `poll` that it calls."""

    def __init__(
        self, control: ControlBlock, make_runner: Callable[[Callable[[], None]], Any]
    ) -> None:
        self.error: BaseException | None = None
        self._abandoned = False
        self.runner = make_runner(raise_when_stopped(control))
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.runner.name)

    def _run(self) -> None:
        host_system.work_for_user()
        try:
            self.runner.serve()
        except StopRequested:
            return
        except Exception as error:  # `raise_if_failed` raises it in the main thread
            self.error = error

    def begin(self) -> None:
        self._thread.start()

    def raise_if_failed(self) -> None:
        """Raise the error of the lane, if there is one.

        Raises:
            LaneError: the lane has failed.
        """
        if self.error:
            raise LaneError(
                f"lane {self.runner.name} failed: {error_text(self.error)}"
            ) from self.error

    def environments(self, at: int) -> dict[str, Any]:
        return external_envs.snapshot(self.runner.environments)

    @property
    def thread(self) -> cpu_wait.Thread | None:
        native = self._thread.native_id
        return (os.getpid(), native) if native else None

    def kill(self) -> None:
        self._abandoned = True  # a thread cannot be ended, so the run continues without it

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        return external_envs.describe_overdue_env(self.runner.environments, limit_s)

    def join(self) -> Measured:
        if self._thread.is_alive():
            self._thread.join(timeout=0.0 if self._abandoned else ANSWER_S)
        if not self._thread.is_alive():
            external_envs.close(self.runner.environments)
        return self.runner.times_ns, self.runner.lags, [self.runner.record()]


class ProcessWorker(Worker):
    """A lane in a child process over the same memory.

    number, name: of the lane.
    cells: file descriptor of the memory of the control block.
    spins: calls of sched_yield before the lane sleeps.
    restarted_envs: native environments of the lane were restarted in the middle of episodes.
    """

    def __init__(
        self,
        context: RunContext,
        number: int,
        name: str,
        cells: int,
        spins: int,
        *,
        restarted_envs: bool,
    ) -> None:
        """Start the process.

        Raises:
            ValueError: the arrays are not in shared memory.
        """
        if context.memory is None:
            raise ValueError("lanes in processes need their arrays in shared memory")
        self.name, self._log = name, context.log
        self.steps_envs = recovery.steps_external_envs(context, number)
        events = [event.handles for event in context.wake_events]
        config = {
            **context.to_json(),
            "lane": number,
            "layout": context.memory.layout,
            "memory": context.memory.handle,
            "cells": cells,
            "wake_events": events,
            "spins": spins,
            "restarted_envs": restarted_envs,
            "remote_groups": len(context.remote_groups),
        }
        self._replies: list[Answer] = []
        self._failures: list[tuple[str, int]] = []
        self._snapshots: Answer = {"at": -1, "environments": {}}
        self._child = ChildProcess(
            "pearl.runtime.lanes.worker_process:main",
            [context.memory.handle, cells, *(handle for event in events for handle in event)],
            config,
            self._on_reply,
        )

    def _on_reply(self, reply: Answer) -> None:
        if "environments" in reply:
            self._snapshots = reply  # only the last snapshots count
        elif "failure" in reply:
            self._failures.append((reply["failure"], reply["lost"]))
        else:
            self._replies.append(reply)

    def cpu_s(self) -> float:
        return self._child.cpu_s()

    @property
    def pid(self) -> int:
        """Number of the child process."""
        return self._child.pid

    @property
    def thread(self) -> cpu_wait.Thread | None:
        return self.pid, self.pid

    def _reply(self, key: str) -> Any:
        return next((reply[key] for reply in self._replies if key in reply), None)

    def wait_ready(self) -> None:
        """Wait until the process has bound its calls.

        Raises:
            LaneError: the process was not ready within READY_S.
        """
        what = f"lane {self.name}, whose process {self.pid} imports, binds and compiles,"
        with naming(what, f"after {READY_S:g} s the run fails"):
            self._child.wait_for(lambda: self._replies or self._child.is_closed, READY_S)
        self.raise_if_failed()
        if not self._reply("ready"):
            raise LaneError(f"lane {self.name} was not ready within {READY_S:.0f} s")
        for text in self._reply("notes") or []:
            self._log.announce(text)

    def begin(self) -> None:
        self._child.send({"begin": True})

    def environments(self, at: int) -> dict[str, Any]:
        """Return snapshots of the lane's external environments at iteration `at`.

        Raises:
            LaneError: the process sends none within ANSWER_S.
        """
        if not self.steps_envs:
            return {}
        if not self._child.wait_for(lambda: self._snapshots["at"] == at, ANSWER_S):
            raise LaneError(
                f"lane {self.name} has sent no snapshots of its environments within "
                f"{ANSWER_S:.0f} s"
            )
        return dict(self._snapshots["environments"])

    def failures(self) -> list[tuple[str, int]]:
        with self._child.reply_condition:
            failures, self._failures = self._failures, []
        return failures

    def raise_if_failed(self) -> None:
        """Raise the error of the lane, if there is one.

        Raises:
            LaneDiedError: the process has ended.
            LaneError: the process has reported an error.
        """
        exit_reason = self._child.exit_reason()
        if error := self._reply("error"):
            raise LaneError(f"lane {self.name} failed: {error}")
        if exit_reason:
            raise LaneDiedError(f"lane {self.name}: {exit_reason}")

    def kill(self) -> None:
        self._child.kill()

    def join(self) -> Measured:
        self._child.end()
        record = self._reply("record")
        records = [] if record is None else [record]
        return self._reply("times_ns") or {}, self._reply("lags") or {}, records


def error_text(error: BaseException) -> str:
    """Describe an error in one line: its text, with its type unless the text suffices."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, LaneError)) else f"{type(error).__name__}: {text}"
