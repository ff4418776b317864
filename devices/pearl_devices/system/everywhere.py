"""What psutil and the standard library tell on every system, and what only Linux tells."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any


def psutil() -> Any:
    return import_module("psutil")


def cpu_quota() -> float | None:
    return None


def pin(cores: Collection[int]) -> None:
    """There is no such call."""


def name_process(name: str) -> None:
    """There is no such call; the command line of a program that was started anew names it."""


def queued_s(process: int, thread: int) -> float | None:
    return None


def all_queued_s() -> float | None:
    return None


def stolen_s() -> float:
    return 0.0


def cpu_s(process: int) -> float | None:
    try:
        used = psutil().Process(process).cpu_times()
    except psutil().Error:
        return None
    return float(used.user + used.system)


def family_cpu_s(process: int) -> float | None:
    return cpu_s(process)


def free_bytes() -> tuple[float | None, float]:
    return float(psutil().virtual_memory().available), float(psutil().swap_memory().free)


def watch_end(process: int) -> int | None:
    return None


def read_wait_status(process: int) -> int | None:
    return None
