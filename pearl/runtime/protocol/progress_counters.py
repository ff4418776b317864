"""Progress counters that lanes share, and how lanes wait for them.

Every task has one counter, which only its lane writes: the number of its complete firings. A lane
that waits spins with `sched_yield`, then sleeps on an event. Stores release and loads acquire, so a
lane that has seen a count sees everything that the firing wrote.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.math.atomics import CELL as CELL
from pearl_devices.primitives.math.atomics import fence, give_way, load, store

Ints = npt.NDArray[np.int64]

_compiled = compiled(nogil=True, error_model="numpy")


@_compiled
def counts_reached(address: int, which: Ints, base: Ints, step: Ints, number: int) -> bool:
    """Whether every count `which` is at least base + number · step."""
    for i in range(which.size):
        if load(address + CELL * which[i]) < base[i] + number * step[i]:
            return False
    return True


@_compiled
def spin_until_reached(
    address: int, which: Ints, base: Ints, step: Ints, number: int, yields: int
) -> bool:
    """Check `counts_reached` until it holds, with at most `yields` calls of sched_yield."""
    for i in range(which.size):
        need = base[i] + number * step[i]
        while load(address + CELL * which[i]) < need:
            if yields <= 0:
                return False
            yields -= 1
            give_way()
    return True


@_compiled
def spin_until_changed(address: int, which: Ints, seen: Ints, yields: int) -> bool:
    """Check until a count `which` differs from `seen`, with at most `yields` calls of sched_yield
    in between. Return whether a count differs."""
    while True:
        for i in range(which.size):
            if load(address + CELL * which[i]) != seen[i]:
                return True
        if yields <= 0:
            return False
        yields -= 1
        give_way()


@_compiled
def publish(address: int, which: int, value: int, sleepers: int, first: int, last: int) -> bool:
    """Set a counter. Return whether a lane of first … last − 1 sleeps; `sleepers`: the first sleep
    cell.

    The fence keeps the load of the sleep cells behind the store of the counter. A lane that goes to
    sleep sets its cell, fences and then loads the counter: one of the two sees the other.
    """
    store(address + CELL * which, value)
    fence()
    asleep = 0
    for lane in range(first, last):
        asleep += load(sleepers + CELL * lane)
    return asleep != 0


@_compiled
def store_cell(address: int, value: int) -> None:
    """Store one cell (release), then fence."""
    store(address, value)
    fence()


@_compiled
def load_cell(address: int) -> int:
    """Load one cell (acquire)."""
    return int(load(address))
