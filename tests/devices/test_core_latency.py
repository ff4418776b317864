"""The distance of two cores: what is exchanged, how it is timed, and which readings are alike."""

from __future__ import annotations

import threading

import numpy as np

from pearl_devices.primitives.math import core_latency
from pearl_devices.primitives.math.atomics import CELL


def test_each_question_waits_for_its_answer_and_reads_what_that_carries() -> None:
    cells, carried = np.zeros(3 * CELL // 8, np.int64), np.zeros(6, np.int64)
    address = int(cells.ctypes.data)
    other = threading.Thread(target=core_latency.answer, args=(address, 5, carried), daemon=True)
    other.start()
    # the answer to question n is n in each of the six numbers
    assert core_latency.ask(address, 0, 2, carried) == 6 * (1 + 2)
    assert core_latency.ask(address, 2, 5, carried) == 6 * (3 + 4 + 5)
    other.join()
    assert cells.tolist() == [5, *[0] * 7, 5, *[0] * 15]


def test_readings_are_alike_up_to_a_fifth() -> None:
    pairs = ((1.0, 1.0), (1.0, 1.2), (1.2, 1.0), (1.0, 1.21), (1.21, 1.0))
    assert [core_latency.alike(*pair) for pair in pairs] == [True, True, True, False, False]
