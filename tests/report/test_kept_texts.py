"""What the package prints and counts is what is kept in `tests/report/texts`, to the letter."""

import json

import pytest

from tests.report.kept_figures import FIGURES, SPECS, graph_of, plain
from tests.report.kept_texts import COLUMNS, FOLDER, TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_one_that_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert TEXTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FIGURES)
@pytest.mark.parametrize("name", SPECS)
def test_figures_of_a_graph_are_those_that_are_kept(name, file):
    kept = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    found = plain(FIGURES[file](name, graph_of(name)))
    assert found == {key: kept.get(key) for key in found}


def test_no_text_is_kept_of_which_nothing_is_known():
    assert {file.name for file in FOLDER.iterdir()} == {*TEXTS, *FIGURES}
