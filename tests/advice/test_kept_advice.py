"""Advice is what is kept, number by number."""

import pytest

from tests.advice.kept_advice import CASES
from tests.report.kept_pages import kept
from tests.report.kept_texts import COLUMNS


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_the_one_that_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert CASES[name]() == kept("advice.txt")[name].splitlines()


def test_the_cases_of_advice_are_those_that_are_kept():
    assert list(kept("advice.txt")) == list(CASES)
