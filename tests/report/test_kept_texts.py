"""What the package prints is what is kept in `tests/report/texts`, to the letter."""

import pytest

from tests.report.kept_pages import PAGES, first, kept, said
from tests.report.kept_texts import COLUMNS, FOLDER, TEXTS

CASES = [(file, name, made) for file, cases in PAGES.items() for name, made in cases()]


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in PAGES])
def test_a_text_is_the_one_that_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert TEXTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "name", "made"), CASES, ids=[f"{file}: {name}" for file, name, _ in CASES]
)
def test_a_page_says_what_is_kept(file, name, made):
    assert said(file, made) == kept(file)[name]


@pytest.mark.parametrize("file", PAGES)
def test_the_cases_of_pages_are_those_that_are_kept(file):
    texts = kept(file)
    assert texts.pop("").splitlines() == first(file)
    assert list(texts) == [name for name, _ in PAGES[file]()]


def test_no_text_is_kept_of_which_nothing_is_known():
    assert {file.name for file in FOLDER.iterdir()} == set(TEXTS)
