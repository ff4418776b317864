"""What the package prints is what is kept in `tests/report/texts`, to the letter."""

import pytest

from tests.report.kept_drawings import DRAWINGS, drawn
from tests.report.kept_pages import FOLDER, PAGES, kept, said
from tests.report.kept_texts import COLUMNS, TEXTS
from tests.report.kept_values import FIGURES

DRAWN = [(file, name, figure) for file, cases in DRAWINGS.items() for name, figure in cases()]
ELSEWHERE = ("explanations.txt", "advice.txt", "commands.txt")
"""Files whose cases are tests of other folders."""


@pytest.mark.parametrize("name", [n for n in TEXTS if n not in {*PAGES, *DRAWINGS, *ELSEWHERE}])
def test_a_text_is_the_one_that_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert TEXTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", PAGES)
def test_pages_say_what_is_kept(file):
    assert {name: text.splitlines() for name, text in kept(file).items()} == said(file)


@pytest.mark.parametrize(("file", "name", "figure"), DRAWN, ids=[f"{f}: {n}" for f, n, _ in DRAWN])
def test_a_figure_is_the_one_that_is_kept(file, name, figure):
    assert drawn(figure) == kept(file)[name]


@pytest.mark.parametrize("file", DRAWINGS)
def test_the_figures_are_those_that_are_kept(file):
    assert list(kept(file)) == [name for name, _ in DRAWINGS[file]()]


def test_no_text_is_kept_of_which_nothing_is_known():
    assert {file.name for file in FOLDER.iterdir()} == {*TEXTS, *FIGURES}
