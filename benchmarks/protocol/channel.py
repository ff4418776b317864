"""What a message between lanes in two processes costs: counts in shared memory, as the runtime has
them, beside `multiprocessing.Pipe`."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.bars import Part
from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.channels import Layout, SharedArrays

FORK = multiprocessing.get_context("fork")


class Shared:
    """Two counts, one for each way, seen by both processes."""

    def __init__(self) -> None:
        cells = progress_counters.CELL // 8 * 4
        layout: Layout = [("cells", (cells,), "int64")]
        self.arrays = SharedArrays(layout).arrays
        self.address = int(self.arrays["cells"].ctypes.data)
        self._zero, self._one = np.zeros(1, np.int64), np.ones(1, np.int64)

    def wait(self, which: int, number: int) -> None:
        """Until count `which` is at least `number`, as a lane spins."""
        at = np.array([which], np.int64)
        while not progress_counters.spin_until_reached(
            self.address, at, self._zero, self._one, number, 200
        ):
            continue

    def publish(self, which: int, number: int) -> None:
        progress_counters.publish(
            self.address, which, number, self.address + 2 * progress_counters.CELL, 0, 2
        )


def round_trips(there: Callable[[int], None], rounds: int, repeats: int) -> float:
    """Median seconds of one way."""
    found, number = [], 0
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(rounds):
            number += 1
            there(number)
        found.append((time.perf_counter() - begin) / rounds / 2)
    return statistics.median(found)


def counts_one_way(rounds: int, repeats: int) -> float:
    shared = Shared()

    def echo() -> None:
        for number in range(1, rounds * repeats + 1):
            shared.wait(0, number)
            shared.publish(1, number)

    def there(number: int) -> None:
        shared.publish(0, number)
        shared.wait(1, number)

    return _beside(echo, lambda: round_trips(there, rounds, repeats))


def pipe_one_way(rounds: int, repeats: int) -> float:
    mine, other = FORK.Pipe()

    def echo() -> None:
        for _ in range(rounds * repeats):
            other.send_bytes(other.recv_bytes())

    def there(number: int) -> None:
        mine.send_bytes(b"12345678")
        mine.recv_bytes()

    return _beside(echo, lambda: round_trips(there, rounds, repeats))


def _beside(target: Callable[[], None], measure: Callable[[], float]) -> float:
    """What `measure` finds while `target` runs in another process."""
    other = FORK.Process(target=target)
    other.start()
    try:
        return measure()
    finally:
        other.join(timeout=10)
        other.kill()


def run(quick: bool, data: Path | None) -> Part:
    rounds, repeats = (500, 3) if quick else (5000, 9)
    ours_s, pipe_s = counts_one_way(rounds, repeats), pipe_one_way(rounds, repeats)
    times = f"{pipe_s / ours_s:.1f}×"
    rows = [["one way, 8 bytes", f"{ours_s * 1e6:.2f} µs", f"{pipe_s * 1e6:.2f} µs", times]]
    columns = ["between two processes", "lanes", "multiprocessing.Pipe", "lanes better"]
    values = {"one_way_s": {"lanes": ours_s, "pipe": pipe_s}}
    return Part("messages between lanes", columns, rows, [], values=values)
