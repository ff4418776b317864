"""macOS and other Unix systems: what POSIX and psutil offer.

Forks are not used. On macOS, libraries that have used Accelerate or Objective-C do not survive one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from pearl_devices.system.chip import Chip
from pearl_devices.system.everywhere import (
    all_queued_s,
    cpu_quota,
    cpu_s,
    family_cpu_s,
    free_bytes,
    name_process,
    pin,
    psutil,
    queued_s,
    read_wait_status,
    stolen_s,
    watch_end,
)

__all__ = ["all_queued_s", "cpu_quota", "cpu_s", "family_cpu_s", "free_bytes", "read_wait_status"]
__all__ += ["name_process", "pin", "queued_s", "stolen_s", "watch_end"]

NAME = "macOS" if sys.platform == "darwin" else "Unix"
FORKS, PROCESSES, INTERRUPTS, PINS = False, True, True, False
ENDING = (signal.SIGTERM, signal.SIGHUP)
NEW_GROUP = 0
NO_WAIT, NO_LINK = os.O_NONBLOCK | os.O_NOCTTY, os.O_NOFOLLOW

PARENT_S = 0.1
"""Time between two looks whether the parent still exists (assumed)."""

HIGH = 600
"""Least number of a handle that was moved; a process may have 1,024 by default."""

ONE = (1).to_bytes(8, sys.byteorder)


def sysctl(name: str) -> bytes | None:
    """Return a figure of the kernel, such as `hw.memsize`; None if there is none (sysctl(3))."""
    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError, TypeError):
        return None
    size = ctypes.c_size_t(0)
    if ask(name.encode(), None, ctypes.byref(size), None, 0):
        return None
    found = ctypes.create_string_buffer(size.value)
    if ask(name.encode(), found, ctypes.byref(size), None, 0):
        return None
    return found.raw[: size.value]


def sysctl_number(name: str) -> int | None:
    found = sysctl(name)
    return None if found is None else int.from_bytes(found, sys.byteorder)


def usable_cpus() -> list[int]:
    fast = sysctl_number("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else None
    return list(range(fast or os.cpu_count() or 1))


def chip() -> Chip:
    figures = {
        "l1d_bytes": sysctl_number("hw.perflevel0.l1dcachesize"),
        "l2_bytes": sysctl_number("hw.perflevel0.l2cachesize"),
    }
    memory, memory_source = sysctl_number("hw.memsize"), "sysctl, hw.memsize"
    if memory is None:
        memory, memory_source = psutil().virtual_memory().total, "psutil, virtual memory"
    return Chip(
        model=(sysctl("machdep.cpu.brand_string") or b"").rstrip(b"\0").decode(errors="replace"),
        cores=len(usable_cpus()),
        cores_source="cores of the system"
        + (", the fast ones" if sys.platform == "darwin" else ""),
        cache_bytes={name: float(size) for name, size in figures.items() if size},
        cache_source="sysctl, hw.perflevel0",
        memory_bytes=float(memory),
        memory_source=memory_source,
    )


def own_cpu_s() -> float:
    spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent)


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def share_memory(name: str, size: int) -> int:
    # A file would be written back to the disk now and then; this memory is not. Its name has at
    # most 31 characters, and goes at once: the handle is passed on.
    memory, name = import_module("_posixshmem"), f"/{name[:12]}-{secrets.token_hex(8)}"
    handle = int(memory.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    memory.shm_unlink(name)
    os.ftruncate(handle, size)
    return move_up(handle)


def fork() -> int:
    raise OSError(f"{NAME}: a process that runs is not copied here")


def packet_pair(most_bytes: int) -> tuple[socket.socket, socket.socket]:
    raise OSError(f"{NAME} has no connection of packets")


def after_fork(function: Callable[[], None]) -> None:
    os.register_at_fork(after_in_child=function)


class HandleEvent:
    """A pipe that does not block. handles: the end to read, and the end to write if it differs."""

    def __init__(self, handles: Sequence[int]) -> None:
        self.handles = tuple(handles)
        self._poll = select.poll()
        self._poll.register(handles[0], select.POLLIN)

    def set(self) -> None:
        with suppress(BlockingIOError):  # it is full, so it is set
            os.write(self.handles[-1], ONE)

    def wait(self, seconds: float) -> None:
        if self._poll.poll(seconds * 1000):
            with suppress(BlockingIOError):
                os.read(self.handles[0], 1 << 12)

    def close(self) -> None:
        for handle in self.handles:
            os.close(handle)


def new_wake_event(handles: Sequence[int] = ()) -> HandleEvent:
    if not handles:
        handles = [move_up(handle) for handle in os.pipe()]
        for handle in handles:
            os.set_blocking(handle, False)
    return HandleEvent(handles)


def end_with_parent(parent: int, number: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_S)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True, name="pearl parent").start()


def collect_end(child: int, *, wait: bool = False) -> tuple[int, float] | None:
    number, status, used = os.wait4(child, 0 if wait else os.WNOHANG)
    if not number:
        return None
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def kill_group(process: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def is_stopped(process: int) -> bool:
    ask = ["ps", "-o", "stat=", "-p", str(process)]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(ask, capture_output=True, timeout=5.0).stdout.strip()[:1] == b"T"
    return False


def move_up(handle: int) -> int:
    try:
        for least in (HIGH, 3):
            with suppress(OSError):
                return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, least)
        return os.dup(handle)
    finally:
        os.close(handle)


def lock(handle: int, *, shared: bool = False) -> None:
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def set_mode(handle: int, mode: int, owner: tuple[int, int] | None) -> None:
    if owner is not None:
        with suppress(PermissionError):
            os.fchown(handle, *owner)
    os.fchmod(handle, mode)


def find_user() -> int | None:
    return os.geteuid()
