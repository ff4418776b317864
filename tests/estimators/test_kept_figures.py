"""Graphs of every algorithm, counts and estimates of their kernels, and timed kernels, as kept."""

import json
from functools import cache
from typing import Any

import pytest

from tests.report.kept_figures import FIGURES, kernels_of, plain
from tests.report.kept_texts import FOLDER


@cache
def kept(file: str) -> dict[str, Any]:
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "name"), [(f, n) for f, (_, names) in FIGURES.items() for n in names]
)
def test_figures_are_those_that_are_kept(file: str, name: str) -> None:
    by_kernel = file in ("counts.json", "estimates.json")
    mine = tuple(kernels_of(name)) if by_kernel else (f"{name}: ",)
    expected = {key: value for key, value in kept(file).items() if key.startswith(mine)}
    assert plain(FIGURES[file][0](name)) == expected
