"""Windows: one process, with threads.

Lanes, environments and sweeps in processes are not offered: handles and forks are missing.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from pearl_devices.system.interface import HostSystem, WakeEvent

NEW_PROCESS_GROUP = 0x200
"""Flag of CreateProcess, CREATE_NEW_PROCESS_GROUP."""

LOCKED_AT = 1 << 30
"""Byte that a lock takes: others cannot read the locked bytes of a file."""


class ThreadEvent:
    """An event between threads."""

    handles: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set

    def wait(self, seconds: float) -> None:
        if self._event.wait(seconds):
            self._event.clear()

    def close(self) -> None:
        """Nothing is held."""


class Windows(HostSystem):
    NAME = "Windows"
    NEW_GROUP = NEW_PROCESS_GROUP if os.name == "nt" else 0

    def new_wake_event(self, handles: Sequence[int] = ()) -> WakeEvent:
        return ThreadEvent()

    def kill(self, process: int) -> None:
        with suppress(OSError):
            os.kill(process, signal.SIGTERM)  # TerminateProcess

    def lock(self, handle: int, *, shared: bool = False) -> None:
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
