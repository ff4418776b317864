"""Timing a call: warm-up, blocks of repeats, median and spread, and whether it had its cores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from pearl_devices.system import host_system
from pearl_estimators.host.free_cores import queued_here_s

Clock = Callable[[], float]

BLOCKS, LEAST_BLOCKS = 8, 3
HELD = 1.1  # largest wall over CPU seconds of all cores of a call that had its cores, assumed
MOST_REPEATS = 1 << 14  # enough for any clock to measure a call of 100 ns


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    median_s: over blocks of repeats.
    low_s, high_s: the fastest and the slowest block.
    spread: (high_s - low_s) / median_s.
    contention: wall over CPU seconds of each core; well above 1 if another program had the core or
        the call waited.
    repeats: calls timed in all.
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
    cores: int = 1,
    firings: int = 1,
    blocks: int = BLOCKS,
    wall: Clock = time.perf_counter,
    cpu: Clock = time.process_time,
) -> Timing:
    """Time `call` for about `seconds` seconds in `blocks` blocks, after a warm-up.

    There are fewer blocks, but at least three, if one call takes longer than a block.

    computes: the call keeps one core busy from start to end. The time is then the CPU time of the
        process, which does not grow when another program takes the core. False for a call that
        waits (for a device, a process, the disk): the time is then wall time. False with several
        cores is for a call whose threads sleep at times: the time is then the wall time of the
        blocks in which no thread of this process waited for a core, if there are any.
    cores: cores that the call keeps busy all the time, even while one waits for the other. The time
        is then CPU time over cores, of the blocks in which the call had all of them, if there are
        any (calls that shared one core exchanged nothing between caches and took a sixth less).
    firings: firings in one call; the seconds are those of one firing.

    Raises:
        ValueError: `blocks` is below 2, `seconds` is not above 0, or the clock cannot see the
            calls.
    """
    if not seconds > 0:
        raise ValueError(f"time_call: seconds is {seconds}; it must be above 0")
    if blocks < 2:
        raise ValueError(f"time_call: blocks is {blocks}; the spread needs at least 2")
    call()
    repeats, once_s = _repeats(call, seconds / blocks, wall)
    if repeats == 1 and once_s > seconds / blocks:
        blocks = min(blocks, max(LEAST_BLOCKS, round(seconds / once_s)))
    asleep = cores > 1 and not computes
    found = []
    for _ in range(blocks):
        queued_0 = queued_s() if asleep else 0.0
        wall_0, cpu_0 = wall(), cpu()
        for _ in range(repeats):
            call()
        cpu_s, wall_s = cpu() - cpu_0, wall() - wall_0
        if asleep:  # as if it had computed on all cores, without the threads' waits for a core
            cpu_s = cores * wall_s / (1 + (queued_s() - queued_0) / wall_s)
        found.append((cpu_s, wall_s))
    if cores > 1:
        found = [(c, w) for c, w in found if cores * w <= HELD * c] or found
    cpus, walls = (sum(each) for each in zip(*found, strict=True))
    times = [(c / cores if computes else w) / (repeats * firings) for c, w in found]
    middle = median(times)
    if not middle > 0:
        raise ValueError(
            f"time_call: {repeats} calls took no measurable time; give more than {seconds} s"
        )
    return Timing(
        middle,
        min(times),
        max(times),
        repeats * blocks,
        (max(times) - min(times)) / middle,
        cores * walls / cpus if cpus > 0 else math.inf,
    )


def _repeats(call: Callable[[], object], seconds: float, wall: Clock) -> tuple[int, float]:
    """The number of calls that fit into `seconds`, doubled until they fill a tenth of it; and the
    seconds of one call."""
    repeats = 1
    while True:
        start = wall()
        for _ in range(repeats):
            call()
        taken = wall() - start
        if taken >= 0.1 * seconds or repeats >= MOST_REPEATS:
            break
        repeats *= 2
    often = max(1, round(repeats * seconds / taken)) if taken > 0 else repeats
    return often, taken / repeats


def alone_s() -> float:
    """Read a clock that stops while this thread is ready to run and has no core, in seconds.

    The clock is `time.perf_counter` minus Linux's run-queue delay (proc(5), schedstat); on other
    systems it never stops. By this clock, a call takes as long as on an idle machine, including its
    own waits.
    """
    return time.perf_counter() - (queued_here_s() or 0.0)


def queued_s() -> float:
    """Return the seconds that all threads of this process were ready to run and had no core.

    As in `alone_s`; 0 if the system does not count them.
    """
    return host_system.all_queued_s() or 0.0
