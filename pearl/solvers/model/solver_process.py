"""Solvers in separate processes, which are reused for later solves.

Such a process can be ended at any time. Its output does not reach the standard output of this
process.
"""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress

from pearl.solvers.model.highs import read_message, write_message
from pearl_devices.system import host_system

GRACE_S = 0.5
"""Seconds that a solve may exceed its time before its process is ended."""

LONG_S = 3600.0
"""Longest single wait in seconds: system calls accept no infinite time."""

LISTENER = "pearl solver"
"""Name of a thread that reads answers."""

SPARE = 2
"""Largest number of processes that wait for the next solve."""


class _Process:
    """A process that runs `script`.

    It reads messages from its standard input, writes answers to its standard output, and must end
    when its input is closed.
    """

    def __init__(self, script: str) -> None:
        self.script = script
        self.child = subprocess.Popen(
            [sys.executable, "-P", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a fork of this process can close files without locks
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # saves numpy's unused threads
            process_group=0,
            creationflags=host_system.NEW_GROUP,  # Ctrl-C in a terminal reaches this process only
        )
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Pipes have no time limit on every system; a queue has.
        self._listener = threading.Thread(target=self._listen, daemon=True, name=LISTENER)
        self._listener.start()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as answers:
            while answer := read_message(answers):
                self._answers.put(answer)
        self._answers.put(None)

    def send(self, message: bytes) -> None:
        assert self.child.stdin is not None
        write_message(self.child.stdin, message)

    def answer(self, within_s: float) -> bytes | None:
        """Return the next answer; None if it has not come in time.

        Raises:
            EOFError: the process has ended.
        """
        try:
            found = self._answers.get(timeout=float(within_s))
        except queue.Empty:
            return None
        if found is None:
            raise EOFError
        return found

    def drop(self) -> None:
        """Close the input; the process then ends itself."""
        assert self.child.stdin is not None
        with suppress(OSError):
            self.child.stdin.close()

    def end(self) -> None:
        self.child.kill()
        self.drop()
        self.child.wait()
        self._listener.join(1.0)


_lock = threading.Lock()
_spare: list[_Process] = []
_busy: set[_Process] = set()


def solve_in_process(script: str, message: bytes, until: float) -> bytes | None:
    """Return the answer of a process that runs `script`.

    If the process takes `GRACE_S` longer than `until` (`time.monotonic()` seconds), it is ended and
    the result is None. An exception, also KeyboardInterrupt, ends the process. If a waiting process
    has been killed, a new process repeats the solve.

    Raises:
        RuntimeError: a new process ended by itself.
    """
    process, new = _take_process(script)
    try:
        return _request(process, message, until)
    except (EOFError, ConnectionError):
        if new:
            name = os.path.basename(script)
            status = process.child.wait()
            raise RuntimeError(
                f"the process of {name} ended during a solve (status {status}; "
                "-9 means that the kernel killed it because memory ran out)"
            ) from None
    return solve_in_process(script, message, until)


def _request(process: _Process, message: bytes, until: float) -> bytes | None:
    """Return the answer of a process, which then waits for its next solve or is ended."""
    answered = False
    try:
        process.send(message)
        while True:
            wait_s = min(max(0.0, until - time.monotonic()) + GRACE_S, LONG_S)
            if (answer := process.answer(wait_s)) is not None:
                break
            if time.monotonic() >= until + GRACE_S:
                return None
        answered = True
        return answer
    finally:
        _put_back(process, answered)


def _take_process(script: str) -> tuple[_Process, bool]:
    """Return a waiting or a new process, and whether the process is new."""
    with _lock:
        for process in [c for c in _spare if c.script == script]:
            _spare.remove(process)
            if process.child.poll() is None:
                _busy.add(process)
                return process, False
            process.end()
    process = _Process(script)
    with _lock:
        _busy.add(process)
    return process, True


def _put_back(process: _Process, sound: bool) -> None:
    with _lock:
        _busy.discard(process)
        if sound:
            _spare.append(process)
        old = _spare.pop(0) if len(_spare) > SPARE else None
    for unwanted in [old] if sound else [process]:
        if unwanted:
            unwanted.end()


def end() -> None:
    """End the waiting processes. The next solve starts a new process."""
    with _lock:
        waiting = _spare[:]
        _spare.clear()
    for process in waiting:
        process.end()


@atexit.register
def _end_all() -> None:
    end()
    for process in [*_busy]:
        process.end()


def _forked() -> None:
    """Forget the parent's processes after a fork, and close their pipes."""
    global _lock
    _lock = threading.Lock()
    for process in [*_spare, *_busy]:
        process.drop()
        if process.child.stdout is not None:
            process.child.stdout.close()
    _spare.clear()
    _busy.clear()


host_system.after_fork(_forked)
