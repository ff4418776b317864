"""Child processes: programs of this package that take orders and answer in lines of JSON.

A child reads its orders from its standard input and answers to a pipe of its own, for whatever
code of the user's own prints goes to standard error. It hears no signal that ends a run, for its
parent decides when the run ends, and dies with its parent.
"""

from __future__ import annotations

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

from pearl.runtime.fork_server import ForkedProcess
from pearl_devices.primitives.code_cache import sources

ANSWER_S = 10.0
"""Seconds within which a child ends, or answers, once it was told to (assumed)."""

Answer = dict[str, Any]


class ChildProcess:
    """A child, as its parent sees it. What all of its users wait by is `heard`.

    hear: is called with each answer, in a thread of its own, while `heard` is held.
    """

    def __init__(
        self,
        program: str,
        handles: Sequence[int],
        first_request: Mapping[str, Any],
        on_reply: Callable[[Answer], None],
    ) -> None:
        """program: `module:function` that runs. handles: file descriptors that the child gets, see
        `ParentConnection.handle`. about: its first orders."""
        self._hear, self._cpu_s = on_reply, 0.0
        hears, says = os.pipe()
        reads, orders = os.pipe()
        self._lines, self._orders = os.fdopen(hears), os.fdopen(orders, "wb")
        try:
            # What an environment prints is not an answer: standard output is standard error.
            self._child = ForkedProcess(
                program, [], stdin=reads, output=2, handles=[says, *handles]
            )
        finally:
            os.close(says)
            os.close(reads)
        self.heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.tell({**first_request, "sources": sources().digest})

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def silent(self) -> bool:
        """Whether no further answer can come."""
        return not self._listener.is_alive() or self._child.poll() is not None

    def tell(self, what: Mapping[str, Any]) -> None:
        """Send orders. Those to a child that is gone are lost."""
        with suppress(BrokenPipeError):
            self._orders.write(json.dumps(what).encode() + b"\n")
            self._orders.flush()

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
        if self._child.returncode is not None:
            return self._child.cpu_s
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
        with suppress(OSError):
            self._orders.close()
        try:
            self._child.wait(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(timeout=1.0)
        self._lines.close()


class ParentConnection:
    """The parent, as its child sees it."""

    def __init__(self) -> None:
        pairs = [pair.split("=") for pair in sys.argv[1:]]
        self._handles = {int(old): int(new) for old, new in pairs}
        self._answers = os.fdopen(next(iter(self._handles.values())), "w")
        self._saying = threading.Lock()

    def handle(self, number: int) -> int:
        """The file descriptor here that has this number in the parent."""
        return self._handles[number]

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


def serve(
    program: Callable[[ParentConnection, Answer], None], describe: Callable[[BaseException], str]
) -> int:
    """Run a child's program, given its parent and its first orders, and return the exit status.

    describe: makes a line of an exception, for the parent.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = ParentConnection()
    try:
        if (about := parent.orders()) is None:
            return 1
        if about["sources"] != sources().digest:
            raise RuntimeError(
                "the sources of the kernels have changed since the run began, and a process with "
                "other ones would not compute the same; end the run and go on from its checkpoint "
                "with --resume"
            )
        program(parent, about)
    except Exception as error:  # whatever it is, the parent says it
        parent.say(error=describe(error))
        return 1
    return 0
