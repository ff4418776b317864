"""What a message between lanes in two processes costs: counts and slots in shared memory, as the
runtime has them, beside `multiprocessing.Pipe`."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.bars import Part
from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.channels import Layout, SharedArrays

FORK = multiprocessing.get_context("fork")
SLOTS = 4
BYTES = (64, 4096, 65_536, 1_048_576)
Ints = npt.NDArray[np.int64]


class Shared:
    """Two counts, one for each way, and slots for messages, seen by both processes."""

    def __init__(self, size_bytes: int) -> None:
        cells = progress_counters.CELL // 8 * 4
        layout: Layout = [("cells", (cells,), "int64"), ("slots", (SLOTS, size_bytes), "uint8")]
        self.arrays = SharedArrays(layout).arrays
        self.address = int(self.arrays["cells"].ctypes.data)
        self._zero, self._one = np.zeros(1, np.int64), np.ones(1, np.int64)

    def wait(self, which: int, number: int) -> None:
        """Until count `which` is at least `number`, as a lane spins."""
        at = np.array([which], np.int64)
        while not progress_counters.spin(self.address, at, self._zero, self._one, number, 200):
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
    shared = Shared(1)

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


def slots_bytes_per_s(size: int, messages: int) -> float:
    shared = Shared(size)
    slots = shared.arrays["slots"]

    def reader() -> None:
        taken = np.empty(size, np.uint8)
        for number in range(1, messages + 1):
            shared.wait(0, number)
            taken[:] = slots[(number - 1) % SLOTS]
            shared.publish(1, number)

    def send() -> float:
        given, begin = np.ones(size, np.uint8), time.perf_counter()
        for number in range(1, messages + 1):
            shared.wait(1, number - SLOTS)
            slots[(number - 1) % SLOTS] = given
            shared.publish(0, number)
        shared.wait(1, messages)
        return messages * size / (time.perf_counter() - begin)

    return _beside(reader, send)


def pipe_bytes_per_s(size: int, messages: int) -> float:
    mine, other = FORK.Pipe()

    def reader() -> None:
        for _ in range(messages):
            other.recv_bytes()
        other.send_bytes(b"read")

    def send() -> float:
        given, begin = bytes(size), time.perf_counter()
        for _ in range(messages):
            mine.send_bytes(given)
        mine.recv_bytes()
        return messages * size / (time.perf_counter() - begin)

    return _beside(reader, send)


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
    rows = [
        [
            "one way, 8 bytes",
            f"{ours_s * 1e6:.2f} µs",
            f"{pipe_s * 1e6:.2f} µs",
            _times(pipe_s / ours_s),
        ]
    ]
    rates: dict[str, dict[str, float]] = {}
    for size in BYTES:
        total = (20 if quick else 400) * 1_000_000
        messages = max(20, min(20_000, total // size))
        ours, pipe = slots_bytes_per_s(size, messages), pipe_bytes_per_s(size, messages)
        rows.append(
            [
                f"{size:,} bytes a message",
                f"{ours / 1e6:,.0f} MB/s",
                f"{pipe / 1e6:,.0f} MB/s",
                _times(ours / pipe),
            ]
        )
        rates[str(size)] = {"lanes": ours, "pipe": pipe}
    columns = ["between two processes", "lanes", "multiprocessing.Pipe", "lanes better"]
    return Part(
        "messages between lanes",
        columns,
        rows,
        [],
        values={"one_way_s": {"lanes": ours_s, "pipe": pipe_s}, "bytes_per_s": rates},
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×"
