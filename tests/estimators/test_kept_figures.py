"""Graphs of every algorithm, counts and estimates of their kernels, and timed kernels, as kept."""

import pytest

from tests.report import kept_figures
from tests.report.kept_values import figures, named


@pytest.mark.parametrize(("file", "name"), named(kept_figures.FIGURES))
def test_figures_are_those_that_are_kept(file: str, name: str) -> None:
    found, expected = figures(file, name)
    assert found == expected
