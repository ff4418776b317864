"""What an operating system offers to this project."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pearl_devices.system.chip import Chip


def psutil() -> Any:
    return import_module("psutil")


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


class HostSystem:
    """An operating system. This class answers what Python and psutil tell on every one.

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

    NAME = ""
    FORKS = PROCESSES = INTERRUPTS = PINS = False
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)
    NEW_GROUP = NO_WAIT = NO_LINK = 0

    # ---------------------------------------------------------------- cores and time

    def usable_cpus(self) -> list[int]:
        """Return the CPUs on which this process may run; of a mixed chip, the fast cores."""
        return list(range(os.cpu_count() or 1))

    def cpu_quota(self) -> float | None:
        """Return the CPU time that this process may use in a second, in CPUs; None without a
        limit."""
        return None

    def chip(self) -> Chip:
        """Return what the system says of the processor and the memory."""
        return Chip(
            cores=psutil().cpu_count(logical=False) or len(self.usable_cpus()),
            cores_source="psutil, physical cores",
            memory_bytes=float(psutil().virtual_memory().total),
            memory_source="psutil, virtual memory",
        )

    def may_have_gpu(self) -> bool:
        """Return whether this machine may have a GPU. Looking for GPUs imports what drives them."""
        return True

    def pin(self, cores: Collection[int]) -> None:
        """Bind this process to cores, where `PINS`."""

    def work_for_user(self) -> None:
        """Ask that the work of this thread gets fast cores, as work that the user waits for."""

    def queued_s(self, process: int, thread: int) -> float | None:
        """Return the seconds that a thread was ready to run and had no core; None if the system
        does not count them."""
        return None

    def all_queued_s(self) -> float | None:
        """Return `queued_s` of all threads of this process together."""
        return None

    def stolen_s(self) -> float | None:
        """Return the seconds that the host of this virtual machine has taken of the usable cores;
        None if they are not counted."""
        return None

    def cpu_s(self, process: int) -> float | None:
        """Return the CPU-seconds of another process; None if it has gone."""
        try:
            used = psutil().Process(process).cpu_times()
        except psutil().Error:
            return None
        return float(used.user + used.system)

    def family_cpu_s(self, process: int) -> float | None:
        """Return the CPU-seconds of another process with its ended children."""
        return self.cpu_s(process)

    def own_cpu_s(self) -> float:
        """Return the CPU-seconds of this process and its ended children."""
        return sum(os.times()[:4])

    # ---------------------------------------------------------------- memory

    def peak_bytes(self) -> int:
        """Return the most memory that this process had so far."""
        used = psutil().Process().memory_info()
        return int(getattr(used, "peak_wset", used.rss))

    def free_bytes(self) -> tuple[float | None, float]:
        """Return the bytes of memory that are free (None: not told), and those of free swap."""
        return float(psutil().virtual_memory().available), float(psutil().swap_memory().free)

    def share_memory(self, name: str, size: int) -> int:
        """Return the handle of new memory, which ends with its last handle and map. Without
        `PROCESSES`, -1: `mmap` makes memory of this process for it."""
        return -1

    # ---------------------------------------------------------------- processes

    def _lacks(self, what: str) -> OSError:
        return OSError(f"{self.NAME} has no {what}")

    def fork(self) -> int:
        """Copy this process, where `FORKS`; return the number of the copy, 0 in the copy."""
        raise self._lacks("safe copy of a process that runs")

    def after_fork(self, function: Callable[[], None]) -> None:
        """Have a function called in each fork of this process."""

    def packet_pair(self, most_bytes: int) -> tuple[socket.socket, socket.socket]:
        """Return two ends of a connection that carries packets with handles, where `FORKS`."""
        raise self._lacks("connection of packets")

    def new_wake_event(self, handles: Sequence[int] = ()) -> WakeEvent:
        """Return a new event, or the one that has these handles in another process."""
        raise self._lacks("event")

    def end_with_parent(self, parent: int, number: int) -> None:
        """Have this process get signal `number` once `parent`, its parent, has ended. If it has
        ended already, end this process."""

    def name_process(self, name: str) -> None:
        """Show a name in lists of processes. Where there is no such call, the command line of a
        program that was started anew names it."""

    def collect_end(self, child: int, *, wait: bool = False) -> tuple[int, float] | None:
        """Return the exit status and the CPU-seconds of a child of this process, once; None while
        it runs. wait: until it has ended.

        Raises:
            ChildProcessError: other code has collected it.
        """
        return None

    def kill_self(self) -> None:
        """End this process at once."""
        self.kill(os.getpid())

    def kill(self, process: int) -> None:
        """End a process at once, if it still exists."""
        raise NotImplementedError

    def kill_group(self, process: int) -> None:
        """Kill the process group that a process leads, if it still exists."""
        self.kill(process)

    def watch_end(self, process: int) -> int | None:
        """Return a handle that can be read once a process has ended; None: not offered."""
        return None

    def is_stopped(self, process: int) -> bool:
        """Return whether a process was halted, as by Ctrl-Z."""
        return False

    def read_wait_status(self, process: int) -> int | None:
        """Return the wait status of a child of another process that nobody has collected; None if
        the system does not tell."""
        return None

    # ---------------------------------------------------------------- files

    def raise_file_limit(self) -> None:
        """Let this process and its children open more files, if it may."""

    def move_up(self, handle: int) -> int:
        """Return another number of an open file, a high one if there is one, and close this one.

        A new file gets the lowest free number. If code of the user closes all low numbers, a number
        that a run still uses would name another file: the run would read, write and close the wrong
        one, and wait for ever. A high number is not given away again: its use is an error.

        Raises:
            OSError: there are too many files.
        """
        return handle

    def lock(self, handle: int, *, shared: bool = False) -> None:
        """Lock an open file for this process until the handle is closed.

        Raises:
            OSError: another process has locked it (BlockingIOError), or there are no locks.
        """
        raise NotImplementedError

    def sync_folder(self, folder: Path) -> None:
        """Write the names in a folder to the disk, where a folder can be opened."""

    def set_mode(self, handle: int, mode: int, owner: tuple[int, int] | None) -> None:
        """Set the mode of an open file, and its owner (user, group) if this user may."""

    def find_user(self) -> int | None:
        """Return the number of this user; None if users have no numbers."""
        return None
