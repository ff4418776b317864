"""Processes of this machine by their entries in /proc: who runs below whom, and for how long."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def children(pid: int | str) -> list[int]:
    """The processes that a process has started or adopted, ended ones that it has not waited for
    among them."""
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def below(pid: int | str) -> list[int]:
    """Its children, and theirs."""
    return [one for child in children(pid) for one in (child, *below(child))]


def _stat(pid: int) -> list[str]:
    """The words behind the name in the entry of a process; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has waited for."""
    return _stat(pid)[:1] not in ([], ["Z"])


def cpu_s(pids: list[int], *, waited: bool = False) -> float:
    """CPU-seconds of these processes so far; waited: and of those that they have waited for."""
    ticks = sum(int(word) for pid in pids for word in _stat(pid)[11 : 15 if waited else 13])
    return ticks / os.sysconf("SC_CLK_TCK")
