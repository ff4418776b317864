"""The distance of two cores in time: how long they take to exchange a number, and bytes.

Cores that share a cache exchange a line in tens of nanoseconds; other cores take several times as
long. The host of a virtual machine may move its processors between the two cases at any moment. The
same gradient step on two cores then takes a quarter longer for a while. So every timing of two
cores records their distance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.math.atomics import CELL, give_way, load, store

Ints = npt.NDArray[np.int64]
Found = TypeVar("Found")

ANSWERS, BLOCKS = 100, 5
CARRIED = 1 << 15
"""Bytes that a question and its answer carry: a few batches, less than half a core's own cache."""

ALIKE = 1.2
"""Two readings of `exchange_s` that differ by more than this factor mean other places of the cores.
Seen on 2 × AMD EPYC, virtual: 0.53, 0.68 and 2.9 us, each within 5 %."""

_compiled = compiled(nogil=True, error_model="numpy")


@_compiled
def fill(cells: Ints, value: int) -> None:
    """Write every cell."""
    for i in range(cells.size):
        cells[i] = value


@_compiled
def total(cells: Ints) -> int:
    """Read every cell."""
    found = 0
    for i in range(cells.size):
        found += cells[i]
    return found


@_compiled
def ask(address: int, begin: int, end: int, carried: Ints) -> int:
    """Count from `begin` to `end` in the first cell; after each number wait until the second cell
    has followed, then read the carried bytes."""
    found = 0
    for number in range(begin + 1, end + 1):
        store(address, number)
        while load(address + CELL) < number:
            give_way()
        found += total(carried)
    return found


@_compiled
def answer(address: int, end: int, carried: Ints) -> None:
    """The other side of `ask`; it writes the carried bytes."""
    for number in range(1, end + 1):
        while load(address) < number:
            give_way()
        fill(carried, number)
        store(address + CELL, number)


def exchange_s(size: int = CARRIED, blocks: int = BLOCKS) -> float:
    """Half of the seconds between a question and its answer by a spinning thread, which writes
    `size` bytes that the asking thread then reads; median of several blocks."""
    cells, carried = np.zeros(3 * CELL // 8, np.int64), np.zeros(size // 8, np.int64)
    address = int(cells.ctypes.data)
    given = (address, ANSWERS * blocks, carried)
    helper = threading.Thread(target=answer, args=given, daemon=True)
    helper.start()
    times = []
    for block in range(blocks):
        begin = time.perf_counter()
        ask(address, block * ANSWERS, (block + 1) * ANSWERS, carried)
        times.append((time.perf_counter() - begin) / (2 * ANSWERS))
    helper.join()
    return median(times)


def alike(a_s: float, b_s: float) -> bool:
    """Whether two readings are of equally distant cores."""
    return max(a_s, b_s) <= ALIKE * min(a_s, b_s)


def as_near(run: Callable[[], Found], apart_s: float) -> tuple[Found, bool]:
    """Return the result of `run`, and whether the distance of two cores was `apart_s` before and
    after it; always true for 0."""
    if not apart_s:
        return run(), True
    before_s = exchange_s()
    found = run()
    return found, alike(before_s, apart_s) and alike(exchange_s(), apart_s)
