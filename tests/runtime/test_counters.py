"""The counts that lanes share: what is reached, what has changed, who is woken, in what order."""

import re
import threading
import time

import numba
import numpy as np
import pytest

from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.progress_counters import CELL
from pearl_devices.system import host_system
from tests.processes import HANG_S

WORDS = CELL // 8


@pytest.fixture
def cells():
    """Six cells that hold 10, 20, … 60; the words between them are −1."""
    found = np.full(6 * WORDS, -1, np.int64)
    found[::WORDS] = range(10, 70, 10)
    return found


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("base", "step", "number", "there"),
    [
        ((20, 40), (0, 0), 9, True),
        ((21, 40), (0, 0), 9, False),
        ((20, 41), (0, 0), 9, False),
        ((14, 10), (2, 10), 3, True),  # needs 20 and 40
        ((15, 10), (2, 10), 3, False),
        ((14, 11), (2, 10), 3, False),
        ((29, 10), (-3, 10), 3, True),
    ],
)
def test_counts_are_reached_where_each_is_at_least_what_the_round_needs(
    cells, base, step, number, there
):
    given = cells.ctypes.data, ints(1, 3), ints(*base), ints(*step), number
    assert progress_counters.counts_reached(*given) is there
    for yields in (0, 3):
        assert progress_counters.spin_until_reached(*given, yields) is there


def later(seconds, address, value):
    def write():
        time.sleep(seconds)
        progress_counters.store_cell(address, value)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_who_spins_sees_what_another_thread_writes(cells):
    address = cells.ctypes.data
    thread = later(0.05, address + CELL, 25)
    assert progress_counters.spin_until_reached(
        address, ints(0, 1), ints(0, 1), ints(1, 8), 3, 10**9
    )
    thread.join()
    thread = later(0.05, address + CELL, 30)
    assert progress_counters.spin_until_changed(address, ints(0, 1), ints(10, 25), 10**9)
    thread.join()


@pytest.fixture
def control():
    """The cells of two tasks, three lanes and a remote group; all hold −7."""
    whole = np.full(ControlBlock.size(2, 3, 1) + WORDS, -7, np.int64)
    first = -whole.ctypes.data % CELL // 8
    return ControlBlock(("a", "b"), 3, whole[first : first + ControlBlock.size(2, 3, 1)], 1)


def test_lanes_begin_at_their_iteration_and_may_not_run_past_the_end_of_an_earlier_segment(control):
    control.write(control.end_cell, 90)
    control.reset({"a": 8, "b": 4}, 4, limit=6)
    assert [control.read(control.count_cell(task)) for task in control.tasks] == [8, 4]
    assert [control.read(control.flushed_cell(lane)) for lane in range(3)] == [4, 4, 4]
    limit, flush, _, _, end = (control.read(cell) for cell in control.control_cells)
    assert (limit, flush, end) == (6, 4, 4)


@pytest.mark.parametrize(
    ("asleep", "first", "last", "wakes"),
    [
        ((0, 0, 0), 0, 3, False),
        ((1, 0, 0), 0, 3, True),
        ((0, 0, 1), 0, 3, True),
        ((0, 0, 1), 0, 2, False),
        ((1, 0, 0), 1, 3, False),
        ((0, 1, 0), 1, 2, True),
        ((1, 0, 1), 0, 3, True),
    ],
)
def test_who_publishes_learns_whether_a_lane_of_these_sleeps(cells, asleep, first, last, wakes):
    cells[3 * WORDS :: WORDS] = asleep
    address = cells.ctypes.data
    assert progress_counters.publish(address, 1, 99, address + 3 * CELL, first, last) is wakes
    assert cells[::WORDS].tolist() == [10, 99, 30, *asleep]


INT = numba.types.int64
INTS = numba.types.Array(INT, 1, "C")
ORDER = {
    # Dekker: who publishes then looks for sleepers, who sleeps says so and then looks at the
    # counts. Without the fences both may see what was there before, and a wake-up is lost.
    progress_counters.publish: ((INT,) * 6, r"^store release,fence seq_cst(,load acquire)+$"),
    progress_counters.store_cell: ((INT,) * 2, r"^store release,fence seq_cst$"),
    progress_counters.load_cell: ((INT,), r"^load acquire$"),
    progress_counters.counts_reached: ((INT, INTS, INTS, INTS, INT), r"^(load acquire,?)+$"),
    progress_counters.spin_until_reached: (
        (INT, INTS, INTS, INTS, INT, INT),
        r"^(load acquire,?)+$",
    ),
    progress_counters.spin_until_changed: ((INT, INTS, INTS, INT), r"^(load acquire,?)+$"),
}


@pytest.mark.parametrize("function", ORDER, ids=lambda f: f.py_func.__name__)
def test_memory_is_read_and_written_in_order(function):
    types, order = ORDER[function]
    again = numba.njit(nogil=True, error_model="numpy")(function.py_func)
    again.compile(types)
    text = again.inspect_llvm(types)
    found = re.findall(r"(load|store) atomic i64.*? (\w+), align|^ *(fence) (seq_cst)", text, re.M)
    assert re.match(order, ",".join(" ".join(filter(None, words)) for words in found))


def test_a_bell_ends_a_sleep_and_rings_once():
    def slept_s(seconds):
        begin = time.monotonic()
        event.wait(seconds)
        return time.monotonic() - begin

    event = host_system.new_wake_event()
    assert slept_s(0.05) >= 0.04
    event.set()
    event.set()
    assert slept_s(HANG_S) < HANG_S
    assert slept_s(0.05) >= 0.04  # both were heard
    other = host_system.new_wake_event(event.handles)
    other.set()
    assert slept_s(HANG_S) < HANG_S
    event.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        other.set()
