"""The operating system: everything that Linux, macOS and Windows do not do alike.

The files `linux`, `portable` (macOS and other Unix systems) and `windows` have the names of
`HostSystem`. `PEARL_SYSTEM` selects one of them; by default it is that of this machine. The room
imports the standard library alone (psutil on use), so that a program without other imports can use
it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from pearl_devices.system.chip import Chip

VARIABLE = "PEARL_SYSTEM"
PARTS = ("linux", "portable", "windows")


class WakeEvent(Protocol):
    """An event on which one lane sleeps. If it is set before the sleep, the sleep ends at once.

    handles: file descriptors, with which another process can make the same event; none if it serves
        one process alone.
    """

    handles: tuple[int, ...]

    def set(self) -> None: ...

    def wait(self, seconds: float) -> None:
        """Sleep until the event is set, at most `seconds`; clear it."""

    def close(self) -> None: ...


class HostSystem(Protocol):
    """An operating system.

    NAME: for readers, such as macOS.
    FORKS: whether a process may be copied while it runs (`os.fork`).
    PROCESSES: whether children can share memory and handles with their parent, as lanes and
        environments in processes need.
    INTERRUPTS: whether a timer can interrupt the main thread (SIGALRM).
    PINS: whether a process can be bound to cores.
    ENDING: signals that ask a process to end, beside Ctrl-C.
    NEW_GROUP: flag of `subprocess.Popen` (creationflags) for a child that gets no Ctrl-C of the
        terminal; elsewhere `process_group` does it.
    NO_WAIT, NO_LINK: flags of `os.open`: open without waiting; refuse a link. 0 if there is none.
    """

    NAME: str
    FORKS: bool
    PROCESSES: bool
    INTERRUPTS: bool
    PINS: bool
    ENDING: tuple[signal.Signals, ...]
    NEW_GROUP: int
    NO_WAIT: int
    NO_LINK: int

    # ---------------------------------------------------------------- cores and time

    def usable_cpus(self) -> list[int]:
        """Return the CPUs on which this process may run; of a mixed chip, the fast cores."""

    def cpu_quota(self) -> float | None:
        """Return the CPU time that this process may use in a second, in CPUs; None without a
        limit."""

    def chip(self) -> Chip:
        """Return what the system says of the processor and the memory."""

    def pin(self, cores: Collection[int]) -> None:
        """Bind this process to cores, where `PINS`."""

    def queued_s(self, process: int, thread: int) -> float | None:
        """Return the seconds that a thread was ready to run and had no core; None if the system
        does not count them."""

    def all_queued_s(self) -> float | None:
        """Return `queued_s` of all threads of this process together."""

    def stolen_s(self) -> float:
        """Return the seconds that the host of this virtual machine has taken of the usable cores;
        0 if they are not counted."""

    def cpu_s(self, process: int) -> float | None:
        """Return the CPU-seconds of another process; None if it has gone."""

    def family_cpu_s(self, process: int) -> float | None:
        """Return the CPU-seconds of another process with its ended children."""

    def own_cpu_s(self) -> float:
        """Return the CPU-seconds of this process and its ended children."""

    # ---------------------------------------------------------------- memory

    def peak_bytes(self) -> int:
        """Return the most memory that this process had so far."""

    def free_bytes(self) -> tuple[float | None, float]:
        """Return the bytes of memory that are free (None: not told), and those of free swap."""

    def share_memory(self, name: str, size: int) -> int:
        """Return the handle of new memory, which ends with its last handle and map."""

    # ---------------------------------------------------------------- processes

    def fork(self) -> int:
        """Copy this process, where `FORKS`; return the number of the copy, 0 in the copy."""

    def after_fork(self, function: Callable[[], None]) -> None:
        """Have a function called in each fork of this process."""

    def packet_pair(self, most_bytes: int) -> tuple[socket.socket, socket.socket]:
        """Return two ends of a connection that carries packets with handles, where `FORKS`."""

    def new_wake_event(self, handles: Sequence[int] = ()) -> WakeEvent:
        """Return a new event, or the one that has these handles in another process."""

    def end_with_parent(self, parent: int, number: int) -> None:
        """Have this process get signal `number` once `parent`, its parent, has ended. If it has
        ended already, end this process."""

    def name_process(self, name: str) -> None:
        """Show a name in lists of processes."""

    def collect_end(self, child: int, *, wait: bool = False) -> tuple[int, float] | None:
        """Return the exit status and the CPU-seconds of a child of this process, once; None while
        it runs. wait: until it has ended."""

    def kill_self(self) -> None:
        """End this process at once."""

    def kill(self, process: int) -> None:
        """End a process at once, if it still exists."""

    def kill_group(self, process: int) -> None:
        """Kill the process group that a process leads, if it still exists."""

    def watch_end(self, process: int) -> int | None:
        """Return a handle that can be read once a process has ended; None: not offered."""

    def is_stopped(self, process: int) -> bool:
        """Return whether a process was halted, as by Ctrl-Z."""

    def read_wait_status(self, process: int) -> int | None:
        """Return the wait status of a child of another process that nobody has collected; None if
        the system does not tell."""

    def move_up(self, handle: int) -> int:
        """Return another number of an open file, a high one if there is one, and close this one.

        A new file gets the lowest free number. If code of the user closes all low numbers, a number
        that a run still uses would name another file: the run would read, write and close the wrong
        one, and wait for ever. A high number is not given away again: its use is an error.

        Raises:
            OSError: there are too many files.
        """

    # ---------------------------------------------------------------- files

    def lock(self, handle: int, *, shared: bool = False) -> None:
        """Lock an open file for this process until the handle is closed.

        Raises:
            OSError: another process has locked it (BlockingIOError), or there are no locks.
        """

    def sync_folder(self, folder: Path) -> None:
        """Write the names in a folder to the disk."""

    def set_mode(self, handle: int, mode: int, owner: tuple[int, int] | None) -> None:
        """Set the mode of an open file, and its owner (user, group) if this user may."""

    def find_user(self) -> int | None:
        """Return the number of this user; None if users have no numbers."""


def _name() -> str:
    given = os.environ.get(VARIABLE) or {"linux": PARTS[0], "win32": PARTS[2]}.get(sys.platform)
    if given is not None and given not in PARTS:
        raise ValueError(f"{VARIABLE}: unknown system {given!r}; allowed: {', '.join(PARTS)}")
    return given or PARTS[1]


def explain_no_processes() -> str:
    """Return why this system has no lanes, environments or runs in processes, and the way out."""
    return f"{host_system.NAME} starts no processes that share memory with PEARL; WSL does"


host_system = cast(HostSystem, import_module(f"{__name__}.{_name()}"))
"""The operating system of this process."""
