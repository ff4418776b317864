"""Windows: one process, with threads.

Lanes, environments and sweeps in processes are not offered: handles and forks are missing.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

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

NEW_PROCESS_GROUP = 0x200
"""Flag of CreateProcess, CREATE_NEW_PROCESS_GROUP."""

NAME = "Windows"
FORKS, PROCESSES, INTERRUPTS, PINS = False, False, False, False
ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)
NEW_GROUP = NEW_PROCESS_GROUP if os.name == "nt" else 0
NO_WAIT, NO_LINK = 0, 0

LOCKED_AT = 1 << 30
"""Byte that a lock takes: others cannot read the locked bytes of a file."""


def usable_cpus() -> list[int]:
    return list(range(os.cpu_count() or 1))


def chip() -> Chip:
    cores = psutil().cpu_count(logical=False) or os.cpu_count() or 1
    memory = float(psutil().virtual_memory().total)
    return Chip(
        cores=cores,
        cores_source="psutil, physical cores",
        memory_bytes=memory,
        memory_source="psutil, virtual memory",
    )


def own_cpu_s() -> float:
    return sum(os.times()[:4])


def peak_bytes() -> int:
    used = psutil().Process().memory_info()
    return int(getattr(used, "peak_wset", used.rss))


def share_memory(name: str, size: int) -> int:
    raise OSError(f"{NAME} shares no memory with other processes here; use WSL")


def fork() -> int:
    raise OSError(f"{NAME} copies no process")


def packet_pair(most_bytes: int) -> tuple[socket.socket, socket.socket]:
    raise OSError(f"{NAME} has no connection of packets")


def after_fork(function: Callable[[], None]) -> None:
    """There are no forks."""


class ThreadEvent:
    """An event between threads."""

    handles: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        if self._event.wait(seconds):
            self._event.clear()

    def close(self) -> None:
        """Nothing is held."""


def new_wake_event(handles: Sequence[int] = ()) -> ThreadEvent:
    return ThreadEvent()


def end_with_parent(parent: int, number: int) -> None:
    """Not offered: no child of this project is started."""


def collect_end(child: int, *, wait: bool = False) -> tuple[int, float] | None:
    return None


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # TerminateProcess


def kill(process: int) -> None:
    with suppress(OSError):
        os.kill(process, signal.SIGTERM)


def kill_group(process: int) -> None:
    kill(process)


def is_stopped(process: int) -> bool:
    return False


def move_up(handle: int) -> int:
    return handle


def lock(handle: int, *, shared: bool = False) -> None:
    if shared:  # the system has no such lock: readers of a cache do without
        return
    try:
        msvcrt: Any = import_module("msvcrt")
    except ModuleNotFoundError:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
    at = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_AT, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(error.errno, error.strerror) from None
    finally:
        os.lseek(handle, at, os.SEEK_SET)


def sync_folder(folder: Path) -> None:
    """A folder cannot be opened."""


def set_mode(handle: int, mode: int, owner: tuple[int, int] | None) -> None:
    """Files have no such modes."""


def find_user() -> int | None:
    return None
