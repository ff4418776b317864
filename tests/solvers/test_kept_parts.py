"""What the parts of the solver make of small problems is what is kept."""

from __future__ import annotations

import pytest

from tests.answers import settled
from tests.solvers.kept_parts import CASES, kept, made


@pytest.mark.parametrize(("part", "seed"), CASES)
def test_a_part_of_the_solver_makes_what_is_kept(part: str, seed: int) -> None:
    expected = kept(part, seed)
    assert settled(made(part, seed), expected) == expected


@pytest.mark.parametrize("other", ["a 1.0000001", "a -1", "b 1", "a 1 2", "a 1e-05", "a1"])
def test_another_number_or_word_is_not_what_is_kept(other: str) -> None:
    assert settled("a 1.00000001", "a 1") == "a 1"
    assert settled(other, "a 1") != "a 1"
