"""Records of plans: regrets, and the types that fields of JSON may have."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pearl.errors import SpecError
from pearl.planning.bands import Bands, Regret
from pearl.planning.json_records import build, fits, list_of
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


def test_a_band_has_two_ends() -> None:
    ends: dict[str, Any] = dict.fromkeys(list(Bands.__dataclass_fields__)[2:9], (1.0, 2.0))
    Bands(200, 0, **ends, missed=0)
    with pytest.raises(SpecError, match=r"bands: power_w is \(1.0, 2.0, 3.0\); two numbers"):
        Bands(200, 0, **{**ends, "power_w": (1.0, 2.0, 3.0)}, missed=0)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("int", [0, 3], [True, 1.5, "1", None]), ("float", [0, 1.5], [True, "1", math.nan, None]),
        ("str", ["", "a"], [1, None]), ("bool", [True, False], [0, "a", None]),
        ("int | None", [3, None], [1.5]),
        ("tuple[int, ...]", [[], [1, 2], (3,)], [[1, 1.5], 3, None, "ab", {"a": 1}]),
        ("Mapping[str, float]", [{}, {"a": 1.0}], [{"a": "b"}, [1.0], None]),
        ("Literal['ab', 'c']", ["ab", "c"], ["a", "b", 1, "ab', 'c"]), ("Plan", [1, "a", None], []),
    ],
)  # fmt: skip
def test_a_value_fits_the_declared_type_of_a_field_or_not(
    kind: str, right: list[Any], wrong: list[Any]
) -> None:
    assert [fits(item, kind) for item in right] == [True] * len(right)
    assert [fits(item, kind) for item in wrong] == [False] * len(wrong)


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
