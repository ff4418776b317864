"""macOS and other Unix systems: what POSIX offers.

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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from pearl_devices.system import sysctl
from pearl_devices.system.chip import Chip
from pearl_devices.system.interface import HostSystem, WakeEvent

MACOS = sys.platform == "darwin"

PARENT_S = 0.1
"""Time between two looks whether the parent still exists (assumed)."""

HIGH = 600
"""Least number of a handle that was moved; a process may have 1,024 by default (Linux)."""

OPEN_FILES = 4096
"""Files that a process may open, if its limit was lower: macOS gives 256 by default. A run with 100
lanes needs about 500. Programs that use select(2) with numbers from 1,024 on fail, so more is
not asked for than is of use."""

USER_INITIATED = 0x19
"""Quality of service of work that the user waits for (macOS, sys/qos.h)."""

ONE = (1).to_bytes(8, sys.byteorder)


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


class Portable(HostSystem):
    NAME = "macOS" if MACOS else "Unix"
    PROCESSES = INTERRUPTS = True
    ENDING = (signal.SIGTERM, signal.SIGHUP)
    NO_WAIT, NO_LINK = os.O_NONBLOCK | os.O_NOCTTY, os.O_NOFOLLOW

    def usable_cpus(self) -> list[int]:
        cpus = super().usable_cpus()
        return cpus[: sysctl.fast_cores()] if MACOS else cpus

    def chip(self) -> Chip:
        return sysctl.read_chip() if MACOS else super().chip()

    def may_have_gpu(self) -> bool:
        return False  # CUDA is offered for Linux and Windows alone

    def work_for_user(self) -> None:
        if ask := getattr(ctypes.CDLL(None), "pthread_set_qos_class_self_np", None):
            ask(USER_INITIATED, 0)

    def own_cpu_s(self) -> float:
        spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(s.ru_utime + s.ru_stime for s in spent)

    def peak_bytes(self) -> int:
        unit = 1 if MACOS else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def share_memory(self, name: str, size: int) -> int:
        # A file would be written back to the disk now and then; this memory is not. Its name has at
        # most 31 characters, and goes at once: the handle is passed on.
        memory, name = import_module("_posixshmem"), f"/{name[:12]}-{secrets.token_hex(8)}"
        handle = int(memory.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        memory.shm_unlink(name)
        os.ftruncate(handle, size)
        return self.move_up(handle)

    def after_fork(self, function: Callable[[], None]) -> None:
        os.register_at_fork(after_in_child=function)

    def new_wake_event(self, handles: Sequence[int] = ()) -> WakeEvent:
        if not handles:
            handles = [self.move_up(handle) for handle in os.pipe()]
            for handle in handles:
                os.set_blocking(handle, False)
        return HandleEvent(handles)

    def end_with_parent(self, parent: int, number: int) -> None:
        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(PARENT_S)
            os.kill(os.getpid(), number)

        threading.Thread(target=watch, daemon=True, name="pearl parent").start()

    def collect_end(self, child: int, *, wait: bool = False) -> tuple[int, float] | None:
        number, status, used = os.wait4(child, 0 if wait else os.WNOHANG)
        if not number:
            return None
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime

    def kill(self, process: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def kill_group(self, process: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    def is_stopped(self, process: int) -> bool:
        ask = ["ps", "-o", "stat=", "-p", str(process)]
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(ask, capture_output=True, timeout=5.0).stdout.strip()[:1] == b"T"
        return False

    def raise_file_limit(self) -> None:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
        if resource.RLIM_INFINITY != now < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))

    def move_up(self, handle: int) -> int:
        try:
            for least in (HIGH, 3):
                with suppress(OSError):
                    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, least)
            return os.dup(handle)
        finally:
            os.close(handle)

    def lock(self, handle: int, *, shared: bool = False) -> None:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def set_mode(self, handle: int, mode: int, owner: tuple[int, int] | None) -> None:
        if owner is not None:
            with suppress(PermissionError):
                os.fchown(handle, *owner)
        os.fchmod(handle, mode)

    def find_user(self) -> int | None:
        return os.geteuid()
