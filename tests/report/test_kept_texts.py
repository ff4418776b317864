"""What the package prints is what is kept in `tests/report/texts`, to the letter."""

import pytest

from tests.report.kept_texts import COLUMNS, FIGURES, FOLDER, TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_one_that_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert TEXTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


def test_no_text_is_kept_of_which_nothing_is_known():
    assert {file.name for file in FOLDER.iterdir()} == {*TEXTS, *FIGURES}
