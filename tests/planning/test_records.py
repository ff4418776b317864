"""Records of plans: regrets, and the types that fields of JSON may have."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pearl.errors import SpecError
from pearl.planning.bands import Regret
from pearl.planning.json_records import build, list_of
from pearl.planning.plans import Entry


@pytest.mark.parametrize(
    ("kind", "bound", "solved", "mean_high", "worst_high", "high", "gap", "proved"),
    [
        ("mean", 0.25, 9, 0.5, 3.0, 0.5, 1 - 1.25 / 1.5, False),
        ("worst", 0.25, 9, 0.5, 3.0, 3.0, 1 - 1.25 / 4.0, False),
        ("mean", 0.5, 9, 0.5, 3.0, 0.5, 0.0, True),
        ("mean", 0.5, 8, 0.5, 3.0, 0.5, 0.0, False),
        ("mean", 0.6, 9, 0.5, 3.0, 0.5, 0.0, True),  # not below 0
        ("mean", -9e-7, 9, 0.0, 3.0, 0.0, 9e-7, True),
        ("mean", -1.9e-6, 9, 0.0, 3.0, 0.0, 1.9e-6, False),
        ("worst", 0.5, 9, 0.5, None, math.inf, 1.0, False),
    ],
)
def test_a_regret_is_as_large_as_its_upper_end_over_its_bound(
    kind: Any, bound: float, solved: int, mean_high: Any, worst_high: Any, high: float, gap: float,
    proved: bool,
) -> None:  # fmt: skip
    found = Regret(kind, 9, 0, 0.1, 0.2, bound, solved, mean_high, worst_high)
    assert found.high == high
    assert found.gap == pytest.approx(gap, abs=1e-12)
    assert found.is_proved is proved


def test_records_are_built_from_objects_with_their_defaults() -> None:
    rows = [{"task": "a", "offset": 2, "more": 1}, {"task": "b"}]
    assert list_of(Entry, rows, "x") == (Entry("a", 2), Entry("b"))
    assert build(Entry, rows[1], "x", {"task": str.__add__}) == Entry("bx: task")
    for value, says in (
        ("ab", "x: a list is needed, this is 'ab'"),
        (3, "x: a list is needed, this is 3"),
        ([rows[1], 3], "x[1]: an object is needed, this is 3"),
        ([{"offset": 1}], "x[0]: key 'task' is missing"),
        ([{"task": 1}], "x[0]: task is 1; a str is needed"),
    ):
        with pytest.raises(SpecError) as error:
            list_of(Entry, value, "x")
        assert str(error.value) == says
