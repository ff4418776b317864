"""Explanations are those that are kept, number by number."""

import pytest

from tests.explanation.kept_explanations import CASES
from tests.report.kept_pages import kept


@pytest.mark.parametrize("name", CASES)
def test_an_explanation_is_the_one_that_is_kept(name):
    assert CASES[name]() == kept("explanations.txt")[name].splitlines()


def test_the_cases_of_explanations_are_those_that_are_kept():
    assert list(kept("explanations.txt")) == list(CASES)
