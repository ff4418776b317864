"""Processes that start with the project already imported.

Importing the toolkit takes a new process more than a CPU-second. One server process imports the
modules once, and forks a child for each request; a fork takes milliseconds. The server does nothing
else: it starts no thread, so the fork copies no lock that a thread holds.

`multiprocessing`'s forkserver does not fit. It runs the user's main module again in each child, so
a script without `if __name__ == "__main__"` would train twice. It stays in the process group of its
parent, so Ctrl-C and `kill -TERM -GROUP` would end it, and with it every lane, before the run has
written its checkpoint. And its children get no environment, output or cores of their own.

`python -m pearl.runtime.fork_server FD` is the server. A request is one packet on the socket FD,
with the file descriptors of the child. The server answers on a pipe that comes with each request: a
line with the number of the process, and a line with its exit status and its CPU-seconds after its
end. The server ends when its parent does, and the kernel then signals its children
(`HostSystem.end_with_parent`).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from pearl.runtime.child_program import KILL, ChildProgram
from pearl_devices.system import host_system

PACKET_BYTES = 1 << 20
"""Maximum bytes of a request; the kernel's limit for a packet is of the same order."""

HANDLES = 250
"""Maximum file descriptors of a child; the kernel takes 253 with a packet (unix(7), SCM_RIGHTS)."""

START_S = 120.0
"""Time within which the server must have imported the modules and forked (assumed)."""

AT_IMPORT = ("OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "VECLIB_", "KMP_", "NUMBA_", "PYTHON", "LD_")
"""Prefixes of the environment variables that libraries read while they are imported: a server only
serves children with the same values."""

ENDING = (signal.SIGINT, *host_system.ENDING)


class ForkedProcess:
    """A child of the server, with the necessary part of the interface of `subprocess.Popen`.

    pid: its number; waits for the fork.
    returncode: exit status, or minus the signal that ended the process; None while it runs.
    cpu_s: CPU-seconds of the process and its ended children, after its end.
    """

    def __init__(self, child: ChildProgram) -> None:
        """
        Raises:
            OSError: there are too many file descriptors, or no server can be started.
        """
        if len(child.handles) > HANDLES:
            raise OSError(
                f"a process of {child.program} would get {len(child.handles)} file descriptors; "
                f"{HANDLES} are the most: use fewer lanes"
            )
        path = os.pathsep.join(place for place in sys.path if place)
        variables = {**os.environ, "PYTHONPATH": path, **child.environment}
        self.returncode: int | None = None
        self.cpu_s = 0.0
        self._pid, self._rest, self._reading = 0, b"", threading.Lock()
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        self._status = open(host_system.move_up(reads), "rb", buffering=0)  # noqa: SIM115 (until the process has ended)
        order = {
            "program": child.program,
            "arguments": list(child.arguments),
            "handles": list(child.handles),
            "environment": variables,
            "cores": sorted(child.cores or host_system.usable_cpus()),
            "dies_by": int(child.dies_by),
            "path": sys.path,
            "folder": os.getcwd(),
            "imports": [name for name in ("torch",) if name in sys.modules],
        }
        try:
            self._server = _request(
                order, [writes, child.stdin, child.output, *child.handles], variables
            )
        finally:
            os.close(writes)
        self._server.children = [c for c in self._server.children if c.returncode is None] + [self]

    @property
    def pid(self) -> int:
        """Number of the process.

        Raises:
            TimeoutError: the server has not forked the process within START_S.
        """
        end_s = time.monotonic() + START_S
        while not self._pid and self.returncode is None:
            self._listen(max(end_s - time.monotonic(), 0.0))
            if time.monotonic() > end_s:
                raise TimeoutError(f"no process was forked within {START_S:g} s")
        return self._pid

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        if self.returncode is None:
            self._listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        end_s = time.monotonic() + timeout if timeout is not None else None
        while self.returncode is None:
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            self._listen(left_s)
            if self.returncode is None and left_s == 0.0:
                raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.poll() is None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(KILL)

    def _listen(self, within_s: float | None) -> None:
        """Read the server's answers; wait `within_s` for the first of them."""
        with suppress(ValueError):  # another thread has read the last line and closed the file
            if self.returncode is None and not _readable(self._status, within_s):
                return
        with self._reading:
            if self.returncode is not None or (read := self._status.read(4096)) is None:
                return  # another thread has read the answer
            *lines, self._rest = (self._rest + read).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self._pid, self.cpu_s = said["pid"], said["cpu_s"]
                self.returncode = said["status"]
            if not read and self.returncode is None:  # the server has died: this child will too
                with suppress(subprocess.TimeoutExpired):
                    self._server.process.wait(1.0)
                self.returncode = self._server.process.returncode or -KILL
            if self.returncode is not None:
                self._status.close()


def _readable(file: IO[bytes], within_s: float | None) -> bool:
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(None if within_s is None else 1000.0 * within_s))


class _Server:
    """The server, for its clients. read: the variables in AT_IMPORT at its start. children: those
    that may still run."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.read = _read_at_import(variables)
        self.children: list[ForkedProcess] = []
        ours, its = host_system.packet_pair(PACKET_BYTES)
        with its:
            self.requests = socket.socket(fileno=host_system.move_up(ours.detach()))
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pearl.runtime.fork_server", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=dict(variables),
                process_group=0,  # signals to the group of this process do not reach the server
            )

    def close(self) -> None:
        """Let the server end; running children get their signal."""
        with suppress(OSError):  # code of the user may have closed it
            self.requests.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10.0)

    def cpu_s(self) -> float:
        """CPU-seconds of the server and of its ended children."""
        return host_system.family_cpu_s(self.process.pid) or 0.0


_lock = threading.Lock()
_servers: list[_Server] = []


def cpu_s() -> float:
    """Return CPU-seconds of all servers and of their children that have ended."""
    with _lock:
        return sum(server.cpu_s() for server in _servers)


def running_pids() -> list[int]:
    """Return the numbers of the running processes."""
    with _lock:
        children = [child for server in _servers for child in server.children]
    return [child.pid for child in children if child.poll() is None]


def _read_at_import(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(AT_IMPORT)}


def _request(
    order: Mapping[str, Any], handles: Sequence[int], variables: Mapping[str, str]
) -> _Server:
    """The server that takes the request: the present one, or a new one if the present one has died
    or has other values of the variables in AT_IMPORT."""
    packet, read = json.dumps(order).encode(), _read_at_import(variables)
    with _lock:
        for server in list(_servers):
            if server.read == read:
                with suppress(ConnectionError):
                    socket.send_fds(server.requests, [packet], handles)
                    return server
            if all(child.poll() is not None for child in server.children):
                server.close()
                _servers.remove(server)
        _servers.append(server := _Server(variables))
        socket.send_fds(server.requests, [packet], handles)
        return server


@atexit.register
def _close_all() -> None:
    """End the servers and wait for them, so that their CPU-seconds count as those of this process's
    children."""
    with _lock:
        for server in _servers:
            server.close()
        _servers.clear()


def _forked() -> None:
    """Forget the server in a fork of this process: the server waits for the end of its parent."""
    global _lock
    _lock = threading.Lock()
    for server in _servers:
        server.requests.close()
    _servers.clear()


host_system.after_fork(_forked)


def serve(requests: socket.socket) -> int:
    """Fork a child for each request, until the parent has gone. In each child, return too: the exit
    status of its program."""
    usual: dict[int, Any] = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    running: dict[int, tuple[int, int]] = {}  # handle of a child → its number, and its answers
    while True:
        ready = set(select.select([requests.fileno(), *running], [], [])[0])
        for handle in ready & running.keys():
            child, answers = running.pop(handle)
            os.close(handle)
            if (end := host_system.collect_end(child, wait=True)) is not None:
                _say(answers, pid=child, status=end[0], cpu_s=end[1])
            os.close(answers)
        if requests.fileno() not in ready:
            continue
        packet, handles, _, _ = socket.recv_fds(requests, PACKET_BYTES, HANDLES + 3)
        if not packet:
            os._exit(0)
        order, server = json.loads(packet), os.getpid()
        sys.path[:] = order["path"]
        module, _, function = order["program"].partition(":")
        with suppress(ImportError):  # a child that needs the module reports the error
            for name in (module, *order["imports"]):
                import_module(name)
        gc.freeze()  # a collection in the child would copy each page that it visits
        child = host_system.fork()
        if not child:
            requests.close()
            for other in (*running, *(answers for _, answers in running.values())):
                os.close(other)
            _become(order, handles, server, usual)
            return int(getattr(import_module(module), function)() or 0)
        for given in handles[1:]:
            os.close(given)
        if (end_handle := host_system.watch_end(child)) is not None:
            running[end_handle] = child, handles[0]
        _say(handles[0], pid=child, status=None, cpu_s=0.0)


def _say(answers: int, **what: float | None) -> None:
    with suppress(BrokenPipeError):  # nobody waits for this child any more
        os.write(answers, json.dumps(what).encode() + b"\n")


def _become(
    order: Mapping[str, Any], handles: Sequence[int], server: int, usual: Mapping[int, Any]
) -> None:
    """Make the child like a process that was started with these arguments."""
    os.setsid()  # only the parent gets a terminal's Ctrl-C
    host_system.end_with_parent(server, order["dies_by"])
    what = (*order["arguments"], order["program"].partition(":")[0].rpartition(".")[2])[0]
    host_system.name_process(f"pearl {what}")  # as `ps` and `top` show it
    for number, handler in usual.items():
        signal.signal(number, handler)
    answers, stdin, output, *further = handles
    os.close(answers)
    for given, standard in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(given, standard)
    os.close(stdin)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    with suppress(OSError):  # the folder may be gone, as it may for any process
        os.chdir(order["folder"])
    host_system.pin(order["cores"])
    numbers = (f"{old}={new}" for old, new in zip(order["handles"], further, strict=True))
    sys.argv[:] = [order["program"], *order["arguments"], *numbers]
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise all children would draw the same numbers


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
