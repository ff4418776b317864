"""Child processes: programs of this package that take orders and answer in lines of JSON.

A child reads its orders from its standard input and answers to a pipe of its own, for whatever
code of the user's own prints goes to standard error. It hears no signal that ends a run, for its
parent decides when the run ends, and dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pearl_devices.primitives.code_cache import sources

ANSWER_S = 10.0
"""Seconds within which a child ends, or answers, once it was told to (assumed)."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends once the parent has died."""

Answer = dict[str, Any]


class ChildProcess:
    """A child, as its parent sees it. What all of its users wait by is `heard`.

    hear: is called with each answer, in a thread of its own, while `heard` is held.
    """

    def __init__(
        self,
        program: str,
        handles: Sequence[int],
        about: Mapping[str, Any],
        hear: Callable[[Answer], None],
    ) -> None:
        """program: module that runs. handles: file descriptors it gets. about: its first orders."""
        self._hear, self._cpu_s = hear, 0.0
        hears, says = os.pipe()
        self._lines = os.fdopen(hears)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", program, str(says)],
                stdin=subprocess.PIPE,
                stdout=2,  # what an environment prints is not an answer
                pass_fds=[*handles, says],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                process_group=0,  # Ctrl-C in a terminal is for this process alone
            )
        finally:
            os.close(says)
        self.heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        ours = {"path": sys.path, "parent": os.getpid(), "sources": sources().digest}
        self.tell({**about, **ours})

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def silent(self) -> bool:
        """Whether no further answer can come."""
        return not self._listener.is_alive() or self._child.poll() is not None

    def tell(self, what: Mapping[str, Any]) -> None:
        """Send orders. Those to a child that is gone are lost."""
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
                with self.heard:
                    self._hear(answer)
                    self.heard.notify_all()
        with self.heard:
            self.heard.notify_all()

    def ended(self) -> str | None:
        """How the child has ended, its last answer heard; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        self._listener.join(timeout=1.0)
        cause = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"its process {self.pid} ended with {cause}"

    def cpu_s(self) -> float:
        """CPU seconds of the child so far."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            self._cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return self._cpu_s

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill()
        self._child.wait()

    def end(self) -> None:
        """Let the child end, by the end of its orders, and hear its last answers."""
        assert self._child.stdin
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(timeout=1.0)
        self._lines.close()


class Parent:
    """The parent, as its child sees it."""

    def __init__(self) -> None:
        self._answers, self._saying = os.fdopen(int(sys.argv[1]), "w"), threading.Lock()
        self.pid = 0

    def say(self, **what: Any) -> None:
        """Answer."""
        with self._saying:
            self._answers.write(json.dumps(what) + "\n")
            self._answers.flush()

    def orders(self) -> Answer | None:
        """The next orders; None once there are no more. Waits as long as the parent lives."""
        line = sys.stdin.readline()
        found: Answer | None = json.loads(line) if line else None
        return found

    def first_orders(self) -> Answer | None:
        """To be called first: the first orders; None where the parent is gone already.

        Raises:
            RuntimeError: the sources of the kernels are no longer those of the parent.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        about = self.orders()
        if about is None:
            return None
        self.pid = about["parent"]
        if not self.alive:
            return None
        sys.path[:] = about["path"]
        if about["sources"] != sources().digest:
            raise RuntimeError(
                "the sources of the kernels have changed since the run began, and a process with "
                "other ones would not compute the same; end the run and go on from its checkpoint "
                "with --resume"
            )
        return about

    @property
    def alive(self) -> bool:
        return os.getppid() == self.pid
