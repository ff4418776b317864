"""Processes that tests start, and waits for events: no test measures how busy the machine is."""

from __future__ import annotations

import gc
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import psutil

from benchmarks.processes import is_running
from pearl.runtime import processes as children

T = TypeVar("T")

HANG_S = 600.0
"""Wall seconds after which an event that has not come is called a hang, on the busiest machine."""


def workers() -> set[int]:
    """Processes of lanes and evaluations that this process began and that run."""
    return set(children.running_pids())


def is_run(pid: int) -> bool:
    """Whether a process is a run of a sweep: by its name if it is a fork, else by its command."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.name() == "pearl train" or "pearl.cli:main" in process.cmdline()
    return False


def until(found: Callable[[], T], what: str = "the event", *, pause_s: float = 0.02) -> T:
    """The first true answer of `found`."""
    end_s = time.monotonic() + HANG_S
    while not (answer := found()):
        assert time.monotonic() < end_s, f"{what} did not come within {HANG_S} s"
        time.sleep(pause_s)
    return answer


def until_gone(pids: Iterable[int]) -> None:
    """Wait until none of them runs."""
    until(lambda: not any(map(is_running, pids)), "the end of the processes")


def handles() -> set[int]:
    """The open file descriptors of this process."""
    return {int(h) for h in os.listdir("/dev/fd") if is_open(int(h))}


def is_open(handle: int) -> bool:
    with suppress(OSError):
        os.fstat(handle)
        return True
    return False


def left(before: set[int]) -> list[int]:
    """The descriptors opened since, by which lanes share memory, wake each other and hear orders,
    once all that nobody holds is freed: pipes, and what has no name in a folder."""
    gc.collect()
    kinds = {h: os.fstat(h) for h in handles() - before}
    named = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISCHR, stat.S_ISSOCK)
    return [h for h, s in kinds.items() if not s.st_nlink or not any(n(s.st_mode) for n in named)]
