"""Linux: what it offers beyond POSIX."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from pearl_devices.system import kernel_files
from pearl_devices.system.chip import Chip
from pearl_devices.system.portable import HandleEvent, Portable

PROC = Path("/proc")

GPU_FILES = ("driver/nvidia", "/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd", "/dev/dri")
"""One of these is there where the kernel drives a GPU: the module of NVIDIA (below `PROC`) and its
device, Jetson's, that of WSL, of AMD's compute driver, and of any other."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to a process once its parent has died."""

PR_SET_NAME = 15
"""prctl(2): the name of a thread, of at most 15 bytes."""

STEAL = 8
"""Field of a line of /proc/stat that counts the ticks taken by the host (proc(5))."""


class Linux(Portable):
    NAME = "Linux"
    FORKS = PINS = True

    def usable_cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def cpu_quota(self) -> float | None:
        return kernel_files.cpu_quota()

    def chip(self) -> Chip:
        return kernel_files.read_chip(self.usable_cpus())

    def may_have_gpu(self) -> bool:
        return any((PROC / name).exists() for name in GPU_FILES)

    def pin(self, cores: Collection[int]) -> None:
        os.sched_setaffinity(0, cores)

    def queued_s(self, process: int, thread: int) -> float | None:
        # The second number of schedstat, in nanoseconds (sched-stats in the kernel's docs).
        try:
            with open(f"{PROC}/{process}/task/{thread}/schedstat", "rb", 0) as counts:
                return int(counts.read().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None

    def all_queued_s(self) -> float | None:
        found = None
        for task in (PROC / "self" / "task").glob("*/schedstat"):
            with suppress(OSError, IndexError):  # a thread that ends
                found = (found or 0.0) + int(task.read_text(encoding="ascii").split()[1]) * 1e-9
        return found

    def stolen_s(self) -> float | None:
        mine = {f"cpu{n}" for n in self.usable_cpus()}
        try:
            lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
            rows = [fields for fields in map(str.split, lines) if fields and fields[0] in mine]
            return sum(int(fields[STEAL]) for fields in rows) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    def cpu_s(self, process: int) -> float | None:
        return _ticks_s(process, 11, 13)

    def family_cpu_s(self, process: int) -> float | None:
        return _ticks_s(process, 11, 15)

    def free_bytes(self) -> tuple[float | None, float]:
        return kernel_files.free_memory()

    def fork(self) -> int:
        return os.fork()

    def packet_pair(self, most_bytes: int) -> tuple[socket.socket, socket.socket]:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, most_bytes)
        return ours, its

    def share_memory(self, name: str, size: int) -> int:
        handle = os.memfd_create(name)
        os.ftruncate(handle, size)
        return self.move_up(handle)

    def new_wake_event(self, handles: Sequence[int] = ()) -> HandleEvent:
        new = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        return HandleEvent(handles or (self.move_up(os.eventfd(0, new)),))

    def end_with_parent(self, parent: int, number: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    def name_process(self, name: str) -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])

    def watch_end(self, process: int) -> int | None:
        return os.pidfd_open(process)

    def is_stopped(self, process: int) -> bool:
        try:
            return _stat(process)[0] in "Tt"
        except (OSError, IndexError):
            return False

    def read_wait_status(self, process: int) -> int | None:
        try:
            fields = _stat(process)
            return int(fields[49]) if fields[0] == "Z" else None
        except (OSError, IndexError, ValueError):
            return None


def _ticks_s(process: int, first: int, end: int) -> float | None:
    try:
        return sum(int(n) for n in _stat(process)[first:end]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def _stat(process: int) -> list[str]:
    """Return the fields of a process from its state on (proc(5), stat)."""
    with open(f"{PROC}/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()
