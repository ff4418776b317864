"""What the parts of the solver make of small problems is what is kept."""

from __future__ import annotations

import pytest

from tests.solvers.kept_parts import CASES, kept, made


@pytest.mark.parametrize(("part", "seed"), CASES)
def test_a_part_of_the_solver_makes_what_is_kept(part: str, seed: int) -> None:
    assert made(part, seed) == kept(part, seed)
