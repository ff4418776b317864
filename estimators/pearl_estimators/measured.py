"""Timing a call: warm-up, blocks of repeats, median and spread, and how busy the machine was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Clock = Callable[[], float]

BLOCKS = 8
WARM_UP_CALLS = 2
MOST_REPEATS = 1 << 14  # enough for any clock to see a call of 100 ns


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    median_s: over blocks of repeats. low_s, high_s: the fastest and the slowest block.
    repeats: calls timed in all. spread: (high_s - low_s) / median_s.
    contention: wall seconds over CPU seconds of all blocks; well above 1 means that something else
    had the core, or that the call waited.
    """

    median_s: float
    low_s: float
    high_s: float
    repeats: int
    spread: float
    contention: float


def time_call(
    call: Callable[[], object],
    *,
    seconds: float,
    computes: bool = True,
    blocks: int = BLOCKS,
    wall: Clock = time.perf_counter,
    cpu: Clock = time.process_time,
) -> Timing:
    """Time `call` for about `seconds` seconds (at least `blocks` calls, after the warm-up).

    computes: the call keeps one core busy from start to end. Its time is then the CPU time of the
    process, which does not grow when something else takes the core. Set it to False for a call that
    waits (for a device, a process, the disk): then it is wall time.
    """
    if not seconds > 0:
        raise ValueError(f"time_call: seconds is {seconds}; it must be above 0")
    if blocks < 2:
        raise ValueError(f"time_call: blocks is {blocks}; the spread needs at least 2")
    for _ in range(WARM_UP_CALLS):
        call()
    repeats = _repeats(call, seconds / blocks, wall)
    times, walls, cpus = [], 0.0, 0.0
    for _ in range(blocks):
        wall_0, cpu_0 = wall(), cpu()
        for _ in range(repeats):
            call()
        cpu_s, wall_s = cpu() - cpu_0, wall() - wall_0
        walls, cpus = walls + wall_s, cpus + cpu_s
        times.append((cpu_s if computes else wall_s) / repeats)
    middle = median(times)
    if not middle > 0:
        raise ValueError(
            f"time_call: {repeats} calls took no time the clock can see; give more than {seconds} s"
        )
    return Timing(
        middle,
        min(times),
        max(times),
        repeats * blocks,
        (max(times) - min(times)) / middle,
        walls / cpus if cpus > 0 else math.inf,
    )


def _repeats(call: Callable[[], object], seconds: float, wall: Clock) -> int:
    """How often `call` fits into `seconds`: doubled until a tenth of it is filled."""
    repeats = 1
    while True:
        start = wall()
        for _ in range(repeats):
            call()
        taken = wall() - start
        if taken >= 0.1 * seconds or repeats >= MOST_REPEATS:
            break
        repeats *= 2
    return max(1, round(repeats * seconds / taken)) if taken > 0 else repeats
