"""Workers: the threads or processes that run lanes beside the lane of this thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pearl.runtime import cpu_wait
from pearl.runtime.child_process import ANSWER_S, Answer, ChildProcess
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.lane_runner import StopRequested
from pearl.runtime.lanes.run_context import RunContext
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.single_lane import LaneError

READY_S = 120.0
"""A worker must be ready within this time: it imports, binds and perhaps compiles (assumed)."""

GRACE_S = 1.0
"""Seconds beyond its time limit after which an environment's worker is ended (assumed)."""

Measured = tuple[Mapping[str, list[int]], Mapping[str, Mapping[Any, int]]]
"""Times in ns by call, and how often each lag was seen."""


class LaneDied(LaneError):
    """The process of a lane has ended, by a signal or by itself, without saying why."""


class Worker:
    """Interface between the engine and a lane hosted in another thread or process, or the lanes of
    another host.

    comes_back: it can be given up and begun `again`, and nothing is lost.
    """

    restartable = False

    def ready(self) -> None:
        """Wait until the calls are bound. Raises LaneError where they cannot be."""

    def begin(self) -> None:
        """Let the lane follow the iteration limit."""

    def check(self) -> None:
        """Raise LaneError if the lane has failed."""

    def environments(self, at: int) -> dict[str, Any]:
        """Snapshots of the lane's environments outside the arrays, at iteration `at`."""
        return {}

    def failures(self) -> list[tuple[str, int]]:
        """Failures of environments since the last call: text, and transitions lost."""
        return []

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        """Why the lane is to be given up: an environment keeps it for longer than `limit_s`.

        stalled_s: seconds in which the lane completed nothing, though it had all it needed.
        """
        return None

    def kill(self) -> None:
        """Give the lane up, whatever it does."""

    def cpu_s(self) -> float:
        """CPU seconds that are not counted as this process's."""
        return 0.0

    @property
    def thread(self) -> cpu_wait.Thread | None:
        """The thread that runs the lane; None before it has begun."""
        return None

    def again(self) -> None:
        """Begin anew with what was there at the last pause, and do the firings since again."""
        raise NotImplementedError

    def settled(self) -> None:
        """All lanes are at the same iteration, and what they wrote is at hand."""

    @property
    def full(self) -> bool:
        """Whether the lanes are to pause soon, so that a lane that is lost can be done again."""
        return False

    def traffic(self) -> list[dict[str, Any]]:
        """Messages and bytes to and from the lanes of another host, as `Run.traffic` has them."""
        return []

    def end(self) -> Measured:
        """Wait for the end of the lane; returns what the lane has measured."""
        raise NotImplementedError


class Thread(Worker):
    """A lane in a thread. runner: makes the lane, given what it calls while it waits."""

    def __init__(self, board: ControlBlock, runner: Callable[[Callable[[], None]], Any]) -> None:
        self.error: BaseException | None = None
        self._left = False
        self._board = board
        self.runner = runner(self._look)
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.runner.name)

    def _look(self) -> None:
        if self._board.read(self._board.stop):
            raise StopRequested

    def _run(self) -> None:
        try:
            self.runner.follow()
        except StopRequested:
            return
        except Exception as error:  # told by the thread that waits for this one
            self.error = error

    def begin(self) -> None:
        self._thread.start()

    def check(self) -> None:
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
        self._left = True  # a thread cannot be ended: it sleeps on, and the run goes without it

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        return external_envs.describe_overdue_env(self.runner.environments, limit_s)

    def end(self) -> Measured:
        if self._thread.is_alive():
            self._thread.join(timeout=0.0 if self._left else ANSWER_S)
        return self.runner.times_ns, self.runner.lags


class ProcessWorker(Worker):
    """A lane in a child process over the same memory.

    number, name: of the lane.
    cells: file descriptor of the memory in which the lanes count.
    spins: how often the lane looks before it sleeps.
    anew: the child takes the place of one that died.
    """

    def __init__(
        self, w: RunContext, number: int, name: str, cells: int, spins: int, *, anew: bool
    ) -> None:
        if w.memory is None:
            raise ValueError("lanes in processes need their arrays in shared memory")
        self.name = name
        self.outside = recovery.steps_outside(w.protocol, number, w.jobs)
        about = {
            **w.about,
            "lane": number,
            "layout": w.memory.layout,
            "memory": w.memory.handle,
            "cells": cells,
            "bells": [b.handle for b in w.bells],
            "learning": list(w.learning),
            "warm": w.span.warm,
            "total": w.span.total,
            "drained": w.span.drained,
            "spins": spins,
            "jitter_s": w.jitter_s,
            "anew": anew,
            "restored": dict(w.restored),
            "env_time_limit_s": w.env_time_limit_s,
            "islands": len(w.islands),
        }
        self._answers: list[Answer] = []
        self._failures: list[tuple[str, int]] = []
        self._kept: Answer = {"at": -1, "environments": {}}
        handles = [w.memory.handle, cells, *(b.handle for b in w.bells)]
        program = "pearl.runtime.lanes.worker_process:main"
        self._child = ChildProcess(program, handles, about, self._hear)

    def _hear(self, answer: Answer) -> None:
        if "environments" in answer:
            self._kept = answer  # of many the last counts
        elif "failure" in answer:
            self._failures.append((answer["failure"], answer["lost"]))
        else:
            self._answers.append(answer)

    def cpu_s(self) -> float:
        return self._child.cpu_s()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def thread(self) -> cpu_wait.Thread | None:
        return self.pid, self.pid

    def _says(self, key: str) -> Any:
        return next((a[key] for a in self._answers if key in a), None)

    def ready(self) -> None:
        with self._child.heard:
            self._child.heard.wait_for(lambda: self._answers or self._child.silent, timeout=READY_S)
        self.check()
        if not self._says("ready"):
            raise LaneError(f"lane {self.name} was not ready within {READY_S:.0f} s")

    def begin(self) -> None:
        self._child.tell({"begin": True})

    def environments(self, at: int) -> dict[str, Any]:
        if not self.outside:
            return {}
        with self._child.heard:
            self._child.heard.wait_for(lambda: self._kept["at"] == at, timeout=ANSWER_S)
        if self._kept["at"] != at:
            raise LaneError(f"lane {self.name} has not told how its environments are")
        found: dict[str, Any] = self._kept["environments"]
        return found

    def failures(self) -> list[tuple[str, int]]:
        with self._child.heard:
            found, self._failures = self._failures, []
        return found

    def timeout_reason(self, limit_s: float, *, stalled_s: float) -> str | None:
        if not self.outside or stalled_s < 1.5 * limit_s + GRACE_S:
            return None
        return f"an environment of its does not answer, and has not for {stalled_s:.1f} s"

    def check(self) -> None:
        ended = self._child.ended()
        error = self._says("error")
        if error:
            raise LaneError(f"lane {self.name} failed: {error}")
        if ended:
            raise LaneDied(f"lane {self.name}: {ended}")

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> Measured:
        self._child.end()
        return self._says("times_ns") or {}, self._says("lags") or {}


def error_text(error: BaseException) -> str:
    """An error in a line: its text, and its type where the text alone says too little."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, LaneError)) else f"{type(error).__name__}: {text}"
