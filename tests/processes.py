"""Processes that tests start, and waits for events: no test measures how busy the machine is."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from benchmarks.processes import is_running
from pearl.runtime import processes as children

T = TypeVar("T")

HANG_S = 600.0
"""Wall seconds after which an event that has not come is called a hang, on the busiest machine."""


def workers() -> set[int]:
    """Processes of lanes and evaluations that this process began and that run."""
    return set(children.running_pids())


def named(pid: int) -> str:
    """The name of a process, as `ps` shows it; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


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


def handles() -> set[str]:
    """The open file descriptors of this process."""
    return {h for h in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{h}").exists()}


def left(before: set[str]) -> list[str]:
    """The descriptors opened since, by which lanes share memory, wake each other and hear orders,
    once all that nobody holds is freed."""
    gc.collect()
    names = [os.readlink(f"/proc/self/fd/{h}") for h in handles() - before]
    return [n for n in names if any(kind in n for kind in ("memfd", "eventfd", "pipe"))]
