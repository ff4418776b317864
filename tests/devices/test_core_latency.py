"""The distance of two cores: what is exchanged, how it is timed, and which readings are alike."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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


def test_an_exchange_is_half_of_the_median_block_over_its_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, ask = list[Any](), core_latency.ask

    def noted(address: int, begin: int, end: int, carried: Any) -> int:
        asked.append((begin, end, carried.nbytes))
        found: int = ask(address, begin, end, carried)
        return found

    clock = SimpleNamespace(perf_counter=iter([0.0, 1.0, 10.0, 14.0, 20.0, 22.0]).__next__)
    monkeypatch.setattr(core_latency, "time", clock)
    monkeypatch.setattr(core_latency, "ask", noted)
    each = core_latency.ANSWERS
    assert core_latency.exchange_s(size=64, blocks=3) == pytest.approx(2.0 / (2 * each))
    assert asked == [(n * each, (n + 1) * each, 64) for n in range(3)]


def test_readings_are_alike_up_to_a_fifth() -> None:
    pairs = ((1.0, 1.0), (1.0, 1.2), (1.2, 1.0), (1.0, 1.21), (1.21, 1.0))
    assert [core_latency.alike(*pair) for pair in pairs] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("apart_s", "readings", "near"),
    [(0.0, (), True), (1.0, (1.1, 0.9), True), (1.0, (2.0,), False), (1.0, (1.0, 2.0), False)],
)
def test_a_result_is_near_if_the_distance_was_the_same_before_and_after(
    monkeypatch: pytest.MonkeyPatch, apart_s: float, readings: tuple[float, ...], near: bool
) -> None:
    left, seen = [*readings, "end"], list[str]()

    def exchange() -> Any:
        seen.append("read")
        return left.pop(0)

    monkeypatch.setattr(core_latency, "exchange_s", exchange)
    found = core_latency.as_near(lambda: seen.append("run") or "found", apart_s)  # type: ignore[func-returns-value]
    assert found == ("found", near)
    assert left == ["end"]
    assert seen == ["run"] if not readings else seen[:2] == ["read", "run"]
