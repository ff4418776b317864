"""Processes of this machine: who runs below whom, and for how long."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil


def children(pid: int) -> list[int]:
    """The processes that a process has started or adopted, ended ones that it has not waited for
    among them."""
    if sys.platform != "linux":
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    found = list[int]()  # psutil reads every process there is: milliseconds, amid what is measured
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def below(pid: int) -> list[int]:
    """Its children, and theirs."""
    return [one for child in children(pid) for one in (child, *below(child))]


def is_running(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has waited for."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def cpu_s(pids: list[int], *, waited: bool = False) -> float:
    """CPU-seconds of these processes so far; waited: and of those that they have waited for."""
    found = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = psutil.Process(pid).cpu_times()
            found += used.user + used.system
            found += used.children_user + used.children_system if waited else 0.0
    return found
