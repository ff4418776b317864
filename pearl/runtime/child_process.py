"""Child processes: programs of this package that get requests and reply in lines of JSON.

A child reads requests from its standard input and replies on a separate pipe, because the output of
user code goes to standard error. It ignores the signals that end a run: its parent decides when the
run ends, and the child dies with its parent.
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
from typing import Any

from pearl.runtime.child_program import ChildProgram
from pearl.runtime.processes import start_process
from pearl_devices.exit_status import describe_exit
from pearl_devices.primitives.code_cache import sources
from pearl_devices.system import host_system

ANSWER_S = 10.0
"""Seconds within which a child ends or replies after a request (assumed)."""

Answer = dict[str, Any]


class ChildProcess:
    """A child, as its parent sees it.

    reply_condition: notified after each reply, and when no further reply can come.
    """

    def __init__(
        self,
        program: str,
        handles: Sequence[int],
        first_request: Mapping[str, Any],
        on_reply: Callable[[Answer], None],
    ) -> None:
        """
        program: `module:function` that the child runs.
        first_request: the request that `serve` passes to the program.

        on_reply: called with each reply in a listening thread that holds `reply_condition`.
        """
        self._on_reply, self._cpu_s = on_reply, 0.0
        reply_end, child_reply_end = os.pipe()
        child_request_end, request_end = os.pipe()
        self._lines, self._requests = (
            os.fdopen(host_system.move_up(reply_end)),
            os.fdopen(host_system.move_up(request_end), "wb"),
        )
        try:
            # Output of an environment is no reply: standard output goes to standard error.
            given = [child_reply_end, *handles]
            self._child = start_process(ChildProgram(program, [], child_request_end, 2, given))
        finally:
            os.close(child_reply_end)
            os.close(child_request_end)
        self.reply_condition = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.send({**first_request, "sources": sources().digest})

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._child.pid

    @property
    def is_closed(self) -> bool:
        """Whether no further reply is possible."""
        return not self._listener.is_alive() or self._child.poll() is not None

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. Requests to a child that has ended are lost."""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def wait_for(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        """Wait until `condition()`, checked after each reply. Return whether it came true in
        time."""
        with self.reply_condition:
            return bool(self.reply_condition.wait_for(condition, timeout=timeout_s))

    def _listen(self) -> None:
        for line in self._lines:
            try:
                answer = json.loads(line)
            except ValueError:  # the child died while it wrote the line
                continue
            if isinstance(answer, dict):
                with self.reply_condition:
                    self._on_reply(answer)
                    self.reply_condition.notify_all()
        with self.reply_condition:
            self.reply_condition.notify_all()

    def exit_reason(self) -> str | None:
        """Describe how the child has ended, after its last reply was handled; None while it
        runs."""
        code = self._child.poll()
        if code is None:
            return None
        self._listener.join(timeout=1.0)
        return f"its process {self.pid} ended with {describe_exit(code)}"

    def cpu_s(self) -> float:
        """Return the CPU-seconds of the child so far."""
        if self._child.returncode is not None:
            return self._child.cpu_s
        self._cpu_s = host_system.cpu_s(self.pid) or self._cpu_s
        return self._cpu_s

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(ANSWER_S)

    def end(self) -> None:
        """Close the requests, so that the child ends, and handle its last replies."""
        with suppress(OSError):
            self._requests.close()
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
        self._handles = {int(old): host_system.move_up(int(new)) for old, new in pairs}
        self._replies = os.fdopen(next(iter(self._handles.values())), "w")
        self._lock = threading.Lock()

    def handle(self, number: int) -> int:
        """Return the file descriptor here that has this number in the parent."""
        return self._handles[number]

    def reply(self, **values: Any) -> None:
        """Send a reply."""
        with self._lock:
            self._replies.write(json.dumps(values) + "\n")
            self._replies.flush()

    def next_request(self) -> Answer | None:
        """Wait for the next request; None if the parent sends no more or has ended."""
        line = sys.stdin.readline()
        return dict(json.loads(line)) if line else None


def serve(
    program: Callable[[ParentConnection, Answer], None], describe: Callable[[BaseException], str]
) -> int:
    """Run the program of a child and return the exit status. The parent gets its exception.

    program: called with the parent and the first request.
    describe: turns an exception into one line of text.

    Raises:
        Nothing: the parent gets every exception as a reply.
    """
    for number in (signal.SIGINT, *host_system.ENDING):
        signal.signal(number, signal.SIG_IGN)
    parent = ParentConnection()
    try:
        if (request := parent.next_request()) is None:
            return 1
        if request["sources"] != sources().digest:
            raise RuntimeError(
                "the sources of the kernels have changed since the run began, and a process with "
                "other sources would not compute the same; end the run and resume it from its "
                "checkpoint with --resume"
            )
        program(parent, request)
    except (Exception, SystemExit) as error:  # the parent reports it
        parent.reply(error=describe(error))
        return 1
    return 0
