"""Workers: the threads or processes that run lanes beside the lane of this thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pearl.runtime import waiting
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.lane_runner import Stopped
from pearl.runtime.lanes.work import Work
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.control_block import Board
from pearl.runtime.protocol.single_lane import LaneError
from pearl_devices.primitives.code_cache import sources

READY_S = 120.0
"""A worker must be ready within this time: it imports, binds and perhaps compiles (assumed)."""

GRACE_S = 1.0
"""Seconds beyond its time limit after which an environment's worker is ended (assumed)."""

ANSWER_S = 10.0
"""Seconds within which a worker ends, or answers, once it was told to (assumed)."""

Measured = tuple[Mapping[str, list[int]], Mapping[str, Mapping[Any, int]]]
"""Times in ns by call, and how often each lag was seen."""


class LaneDied(LaneError):
    """The process of a lane has ended, by a signal or by itself, without saying why."""


class Worker:
    """Interface between the engine and a lane hosted in another thread or process."""

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

    def overdue(self, limit_s: float, *, stalled_s: float) -> str | None:
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
    def thread(self) -> waiting.Thread | None:
        """The thread that runs the lane; None before it has begun."""
        return None

    def end(self) -> Measured:
        """Wait for the end of the lane; returns what the lane has measured."""
        raise NotImplementedError


class Thread(Worker):
    """A lane in a thread. runner: makes the lane, given what it calls while it waits."""

    def __init__(self, board: Board, runner: Callable[[Callable[[], None]], Any]) -> None:
        self.error: BaseException | None = None
        self._left = False
        self._board = board
        self.runner = runner(self._look)
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.runner.name)

    def _look(self) -> None:
        if self._board.read(self._board.stop):
            raise Stopped

    def _run(self) -> None:
        try:
            self.runner.follow()
        except Stopped:
            return
        except Exception as error:  # told by the thread that waits for this one
            self.error = error

    def begin(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self.error:
            raise LaneError(f"lane {self.runner.name} failed: {said(self.error)}") from self.error

    def environments(self, at: int) -> dict[str, Any]:
        return external_envs.snapshot(self.runner.environments)

    @property
    def thread(self) -> waiting.Thread | None:
        native = self._thread.native_id
        return (os.getpid(), native) if native else None

    def kill(self) -> None:
        self._left = True  # a thread cannot be ended: it sleeps on, and the run goes without it

    def overdue(self, limit_s: float, *, stalled_s: float) -> str | None:
        return external_envs.late(self.runner.environments, limit_s)

    def end(self) -> Measured:
        if self._thread.is_alive():
            self._thread.join(timeout=0.0 if self._left else ANSWER_S)
        return self.runner.times_ns, self.runner.lags


class Process(Worker):
    """A lane in a child process over the same memory.

    The child reads its orders as JSON from its standard input and answers in lines of JSON.

    number, name: of the lane.
    cells: file descriptor of the memory in which the lanes count.
    spins: how often the lane looks before it sleeps.
    anew: the child takes the place of one that died.
    """

    def __init__(
        self, w: Work, number: int, name: str, cells: int, spins: int, *, anew: bool
    ) -> None:
        if w.memory is None:
            raise ValueError("lanes in processes need their arrays in shared memory")
        handles = [w.memory.handle, cells, *(b.handle for b in w.bells)]
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
            "path": sys.path,
            "parent": os.getpid(),
            "sources": sources().digest,
        }
        hears, says = os.pipe()
        self._lines = os.fdopen(hears)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "pearl.runtime.lanes.worker_process", str(says)],
                stdin=subprocess.PIPE,
                stdout=2,  # what an environment prints is not an answer
                pass_fds=[*handles, says],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                process_group=0,  # Ctrl-C in a terminal is for this process alone
            )
        finally:
            os.close(says)
        self._answers: list[dict[str, Any]] = []
        self._failures: list[tuple[str, int]] = []
        self._kept: dict[str, Any] = {"at": -1, "environments": {}}
        self._cpu_s = 0.0
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._tell(about)

    def cpu_s(self) -> float:
        with suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            self._cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return self._cpu_s

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def thread(self) -> waiting.Thread | None:
        return self.pid, self.pid

    def _tell(self, what: Mapping[str, Any]) -> None:
        assert self._child.stdin
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(what).encode() + b"\n")
            self._child.stdin.flush()

    def _listen(self) -> None:
        for line in self._lines:
            try:
                answer = json.loads(line)
            except ValueError:  # cut off
                continue
            if isinstance(answer, dict):
                with self._heard:
                    if "environments" in answer:
                        self._kept = answer  # of many the last counts
                    elif "failure" in answer:
                        self._failures.append((answer["failure"], answer["lost"]))
                    else:
                        self._answers.append(answer)
                    self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def _says(self, key: str) -> Any:
        return next((a[key] for a in self._answers if key in a), None)

    def ready(self) -> None:
        with self._heard:
            self._heard.wait_for(
                lambda: (
                    self._answers or not self._listener.is_alive() or self._child.poll() is not None
                ),
                timeout=READY_S,
            )
        self.check()
        if not self._says("ready"):
            raise LaneError(f"lane {self.name} was not ready within {READY_S:.0f} s")

    def begin(self) -> None:
        self._tell({"begin": True})

    def environments(self, at: int) -> dict[str, Any]:
        if not self.outside:
            return {}
        with self._heard:
            self._heard.wait_for(lambda: self._kept["at"] == at, timeout=ANSWER_S)
        if self._kept["at"] != at:
            raise LaneError(f"lane {self.name} has not told how its environments are")
        found: dict[str, Any] = self._kept["environments"]
        return found

    def failures(self) -> list[tuple[str, int]]:
        with self._heard:
            found, self._failures = self._failures, []
        return found

    def overdue(self, limit_s: float, *, stalled_s: float) -> str | None:
        if not self.outside or stalled_s < 1.5 * limit_s + GRACE_S:
            return None
        return f"an environment of its does not answer, and has not for {stalled_s:.1f} s"

    def check(self) -> None:
        code = self._child.poll()
        if code is not None:
            self._listener.join(timeout=1.0)
        error = self._says("error")
        if error:
            raise LaneError(f"lane {self.name} failed: {error}")
        if code is not None:
            cause = f"signal {-code}" if code < 0 else f"exit status {code}"
            raise LaneDied(f"lane {self.name}: its process {self.pid} ended with {cause}")

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def end(self) -> Measured:
        assert self._child.stdin
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(timeout=1.0)
        self._lines.close()
        return self._says("times_ns") or {}, self._says("lags") or {}


def said(error: BaseException) -> str:
    """An error in a line: its text, and its type where the text alone says too little."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, LaneError)) else f"{type(error).__name__}: {text}"
