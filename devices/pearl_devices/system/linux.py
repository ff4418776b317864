"""Linux: what it offers beyond POSIX."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from pearl_devices.system.chip import Chip
from pearl_devices.system.kernel_files import cpu_quota, read_chip
from pearl_devices.system.kernel_files import free_memory as free_bytes
from pearl_devices.system.portable import (
    ENDING,
    NEW_GROUP,
    NO_LINK,
    NO_WAIT,
    HandleEvent,
    after_fork,
    collect_end,
    find_user,
    kill,
    kill_group,
    kill_self,
    lock,
    move_up,
    own_cpu_s,
    peak_bytes,
    set_mode,
    sync_folder,
)

__all__ = ["ENDING", "NEW_GROUP", "NO_LINK", "NO_WAIT", "after_fork", "cpu_quota"]
__all__ += [
    "collect_end",
    "free_bytes",
    "kill",
    "kill_group",
    "kill_self",
    "lock",
    "move_up",
    "own_cpu_s",
]
__all__ += ["find_user", "peak_bytes", "set_mode", "sync_folder"]

NAME = "Linux"
FORKS, PROCESSES, INTERRUPTS, PINS = True, True, True, True

PROC = Path("/proc")

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to a process once its parent has died."""

PR_SET_NAME = 15
"""prctl(2): the name of a thread, of at most 15 bytes."""

STEAL = 8
"""Field of a line of /proc/stat that counts the ticks taken by the host (proc(5))."""


def usable_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def chip() -> Chip:
    return read_chip(usable_cpus())


def pin(cores: Collection[int]) -> None:
    os.sched_setaffinity(0, cores)


def queued_s(process: int, thread: int) -> float | None:
    # The second number of schedstat, in nanoseconds (proc(5), sched-stats in the kernel's docs).
    try:
        with open(f"{PROC}/{process}/task/{thread}/schedstat", "rb", 0) as counts:
            return int(counts.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None


def all_queued_s() -> float | None:
    found = None
    for task in (PROC / "self" / "task").glob("*/schedstat"):
        with suppress(OSError, IndexError):  # a thread that ends
            found = (found or 0.0) + int(task.read_text(encoding="ascii").split()[1]) * 1e-9
    return found


def stolen_s() -> float:
    mine = {f"cpu{n}" for n in usable_cpus()}
    try:
        lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
        rows = [fields for fields in map(str.split, lines) if fields and fields[0] in mine]
        return sum(int(fields[STEAL]) for fields in rows) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def cpu_s(process: int) -> float | None:
    return _ticks_s(process, 11, 13)


def family_cpu_s(process: int) -> float | None:
    return _ticks_s(process, 11, 15)


def _ticks_s(process: int, first: int, end: int) -> float | None:
    try:
        return sum(int(n) for n in _stat(process)[first:end]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def _stat(process: int) -> list[str]:
    """Return the fields of a process from its state on (proc(5), stat)."""
    with open(f"{PROC}/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()


def fork() -> int:
    return os.fork()


def packet_pair(most_bytes: int) -> tuple[socket.socket, socket.socket]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, most_bytes)
    return ours, its


def share_memory(name: str, size: int) -> int:
    handle = os.memfd_create(name)
    os.ftruncate(handle, size)
    return move_up(handle)


def new_wake_event(handles: Sequence[int] = ()) -> HandleEvent:
    return HandleEvent(handles or (move_up(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)),))


def end_with_parent(parent: int, number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])


def watch_end(process: int) -> int | None:
    return os.pidfd_open(process)


def is_stopped(process: int) -> bool:
    try:
        return _stat(process)[0] in "Tt"
    except (OSError, IndexError):
        return False


def read_wait_status(process: int) -> int | None:
    try:
        fields = _stat(process)
        return int(fields[49]) if fields[0] == "Z" else None
    except (OSError, IndexError, ValueError):
        return None
