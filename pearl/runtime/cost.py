"""What the runtime itself takes in a plan of several lanes, measured as a task.

The calibration of a host calls `measured` by name, beside the kernels.
"""

from __future__ import annotations

import threading
import time
from statistics import median

import numpy as np

from pearl.runtime import counters
from pearl.runtime.counters import CELL

FIRINGS, ROUNDS, BLOCKS = 6, 100, 15
ANSWERS = 200


def measured() -> dict[str, float]:
    """firing_s: what a firing takes of its lane beside its kernel. handoff_s: from a count that one
    lane sets to the other lane's call, both awake."""
    return {"firing_s": _firing_s(), "handoff_s": _handoff_s()}


def _firing_s() -> float:
    """CPU seconds of what a lane does around a call that does nothing: the loop, a wait that is
    over, a count published, nobody asleep."""
    cells = np.zeros((FIRINGS + 2) * CELL // 8, np.int64)
    address, sleeping = int(cells.ctypes.data), int(cells.ctypes.data) + FIRINGS * CELL
    nothing = np.zeros(0, np.int64)
    waits = np.zeros(1, np.int64)
    steps = [
        (waits + i, waits, waits, nothing.__len__, ((i, 1, 1),), 0, 1 << 60) for i in range(FIRINGS)
    ]
    times = []
    for _ in range(BLOCKS):
        begin = time.process_time()
        for number in range(ROUNDS):
            for which, base, step, call, published, first, last in steps:
                counters.spin(address, which, base, step, number, 1)
                if first <= number < last:
                    call()
                for cell, count, growth in published:
                    counters.publish(address, cell, count + number * growth, sleeping, 0, 2)
        times.append((time.process_time() - begin) / (ROUNDS * FIRINGS))
    return median(times)


def _handoff_s() -> float:
    """Half of the time between a question and its answer by a thread that spins: the fastest of
    several blocks, in which both had a core."""
    cells = np.zeros(3 * CELL // 8, np.int64)
    address = int(cells.ctypes.data)
    helper = threading.Thread(target=counters.answer, args=(address, ANSWERS * BLOCKS), daemon=True)
    helper.start()
    times = []
    for block in range(BLOCKS):
        begin = time.perf_counter()
        counters.ask(address, block * ANSWERS, (block + 1) * ANSWERS)
        times.append((time.perf_counter() - begin) / (2 * ANSWERS))
    helper.join()
    return min(times)
