"""Graphs of every algorithm, what is counted of their kernels, and what these are estimated to cost."""

import json
from functools import cache
from typing import Any

import pytest

from tests.report.kept_figures import FIGURES, SPECS, kernels_of, plain
from tests.report.kept_texts import FOLDER


@cache
def kept(file: str) -> dict[str, Any]:
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("file", FIGURES)
def test_figures_are_those_that_are_kept(file: str, name: str) -> None:
    mine = (f"{name}: ",) if file == "graphs.json" else tuple(kernels_of(name))
    expected = {key: value for key, value in kept(file).items() if key.startswith(mine)}
    assert plain(FIGURES[file](name)) == expected
