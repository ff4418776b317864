"""Overhead of the runtime in a plan of several lanes, measured on this host.

The calibration of a host calls `measure_overhead` by name, when it times kernels.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.progress_counters import CELL, Ints
from pearl_devices.primitives.math.core_latency import ANSWERS, CARRIED, exchange_s, fill, total

FIRINGS, ROUNDS, BLOCKS = 6, 100, 15


def measure_overhead() -> dict[str, float]:
    """Measure name → seconds.

    firing_s: of a firing in its lane, without its kernel.
    handoff_s: from the end of a call in one lane to the call in another process that has waited
        awake for it.
    carry_s_per_byte: of the lane that writes a byte, and of the lane that reads it, because the
        byte lies in the cache of the other core.
    """
    bare_s, carried_s = exchange_s(0, BLOCKS), exchange_s(CARRIED, BLOCKS)
    alone_s = _alone_s(CARRIED)
    carry_s = max(0.0, 2 * (carried_s - bare_s) - alone_s)
    firing_s = _firing_s()
    with partner() as handoff_s:
        return {
            "firing_s": firing_s,
            "handoff_s": handoff_s(),
            "carry_s_per_byte": carry_s / (2 * CARRIED),
        }


def _firing_s() -> float:
    """CPU seconds of a lane around an empty call: the loop, a wait that is over, the time of the
    call, a count that is published, with no sleeping lane."""
    cells = np.zeros((FIRINGS + 2) * CELL // 8, np.int64)
    address, sleeping = int(cells.ctypes.data), int(cells.ctypes.data) + FIRINGS * CELL
    nothing = np.zeros(0, np.int64)
    waits = np.zeros(1, np.int64)
    steps = [
        (waits + i, waits, waits, nothing.__len__, ((i, 1, 1),), 0, 1 << 60) for i in range(FIRINGS)
    ]
    times, spent_ns = [], [0]
    for _ in range(BLOCKS):
        begin = time.process_time()
        for number in range(ROUNDS):
            for which, base, step, call, published, first, last in steps:
                progress_counters.spin_until_reached(address, which, base, step, number, 1)
                if first <= number < last:
                    begin_ns = time.perf_counter_ns()
                    call()
                    spent_ns[0] += time.perf_counter_ns() - begin_ns
                for cell, count, growth in published:
                    progress_counters.publish(
                        address, cell, count + number * growth, sleeping, 0, 2
                    )
        times.append((time.process_time() - begin) / (ROUNDS * FIRINGS))
    return median(times)


@contextmanager
def partner() -> Iterator[Callable[[], float]]:
    """Start another process that waits asleep, and end it at last. Yield a function that measures
    the handoff to it: half of the seconds between a count and its answer by a lane there, in the
    fastest of several blocks, because in that block both had a core."""
    with tempfile.NamedTemporaryFile() as shared:
        cells = np.memmap(shared.name, np.int64, "w+", shape=3 * CELL // 8)
        command = [sys.executable, "-m", "pearl.runtime.lanes.overhead", shared.name]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)

        def handoff_s() -> float:
            times = []
            assert other.stdin is not None
            other.stdin.write(b"\n")
            _begin(cells, other)
            for block in range(BLOCKS):
                begin = time.perf_counter()
                turn(cells, 0, 1, (1 + block * ANSWERS, 1 + (block + 1) * ANSWERS), YIELDS)
                times.append((time.perf_counter() - begin) / (2 * ANSWERS))
            other.wait(timeout=10)
            return min(times)

        try:
            yield handoff_s
        finally:
            other.kill()
            other.communicate()


YIELDS = 1 << 24
"""Checks of a count before the other side is given up: more than a second on an idle core."""
START_S = 60.0
"""Seconds within which the other process must start."""


def _begin(cells: Ints, other: subprocess.Popen[bytes]) -> None:
    """Wait until the other process has answered its first count."""
    end_s = time.monotonic() + START_S
    while True:
        try:
            return turn(cells, 0, 1, (0, 1), YIELDS)
        except TimeoutError:
            if other.poll() is not None or time.monotonic() > end_s:
                raise


def turn(cells: Ints, mine: int, its: int, numbers: tuple[int, int], yields: int) -> None:
    """Ping-pong: increment counter `mine`, spin until counter `its` reaches the same value.

    numbers: first value, and the one after the last. The side whose counter has the higher index
    spins first.

    Raises:
        TimeoutError: the other side does not answer.
    """
    address, waits = int(cells.ctypes.data), np.zeros(1, np.int64)
    which, step, sleepers = waits + its, waits + 1, address + 2 * CELL
    for number in range(*numbers):
        if mine < its:
            progress_counters.publish(address, mine, number + 1, sleepers, 0, 0)
        if not progress_counters.spin_until_reached(address, which, step, step, number, yields):
            raise TimeoutError("the other lane did not answer")
        if mine > its:
            progress_counters.publish(address, mine, number + 1, sleepers, 0, 0)


def _alone_s(size: int) -> float:
    """Seconds that one core takes to write `size` bytes and read them."""
    carried, times = np.zeros(size // 8, np.int64), []
    for number in range(BLOCKS):
        begin = time.perf_counter()
        for _ in range(ANSWERS):
            fill(carried, number)
            total(carried)
        times.append((time.perf_counter() - begin) / ANSWERS)
    return min(times)


if __name__ == "__main__":
    counts = np.memmap(sys.argv[1], np.int64, "r+", shape=3 * CELL // 8)
    if not sys.stdin.readline():
        sys.exit()
    turn(counts, 1, 0, (0, 1 + ANSWERS * BLOCKS), YIELDS)
