"""Processes that start as new programs, where a process may not be copied.

A new process imports the toolkit itself, which takes more than half a CPU-second.

`python -m pearl.runtime.new_program PARENT SIGNAL CORES PATH PROGRAM ARGUMENT…` is such a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from pearl.runtime.child_program import ChildProgram
from pearl_devices.system import host_system

POLL_S = 0.005
"""Time between two looks whether a process has ended."""


UNKNOWN = (1, 0.0)
"""Exit status and CPU-seconds of a process whose end other code has collected."""


class NewProgram:
    """A process with the interface of `ForkedProcess`."""

    def __init__(self, child: ChildProgram) -> None:
        """
        Raises:
            OSError: the process cannot be started.
        """
        path = os.pathsep.join(place for place in sys.path if place)
        here = [str(os.getpid()), str(int(child.dies_by)), ",".join(map(str, sorted(child.cores)))]
        here.append(json.dumps(sys.path))
        numbers = [f"{handle}={handle}" for handle in child.handles]
        self.returncode: int | None = None
        self.cpu_s = 0.0
        self._collecting = threading.Lock()  # a process is collected once
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "pearl.runtime.new_program", *here),
                *(child.program, *child.arguments, *numbers),
            ],
            stdin=child.stdin,
            stdout=child.output,
            stderr=child.output,
            pass_fds=child.handles,
            env={**os.environ, "PYTHONPATH": path, **child.environment},
            start_new_session=True,  # only the parent gets a terminal's Ctrl-C
        )
        self.pid = self._process.pid
        _started.append(self)

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        with self._collecting:
            if self.returncode is not None:
                return self.returncode
            try:
                end = host_system.collect_end(self.pid)
            except ChildProcessError:  # code of the user waits for all children
                end = UNKNOWN
            if end is not None:
                self.returncode, self.cpu_s = end
                self._process.returncode = self.returncode
                _started.remove(self)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            host_system.kill(self.pid)


_started: list[NewProgram] = []
"""Those that have not been seen to end."""


def running_pids() -> list[int]:
    """Return the numbers of the running processes."""
    return [process.pid for process in list(_started) if process.poll() is None]


def main() -> int:
    """Run the program that the arguments name; return its exit status."""
    parent, number, cores, path, program, *arguments = sys.argv[1:]
    sys.path[:] = json.loads(path)
    host_system.end_with_parent(int(parent), int(number))
    host_system.work_for_user()
    if cores:
        host_system.pin([int(core) for core in cores.split(",")])
    sys.argv[:] = [program, *arguments]
    module, _, function = program.partition(":")
    return int(getattr(import_module(module), function)() or 0)


if __name__ == "__main__":
    sys.exit(main())
