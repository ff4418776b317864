"""What the parts of the solver make of small problems is what is kept."""

from __future__ import annotations

import pytest

from tests.solvers.kept_parts import FOLDER, PARTS, made


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_solver_makes_what_is_kept(part: str) -> None:
    assert made(part) == (FOLDER / f"{part}.txt").read_text()
