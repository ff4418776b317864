"""Explanations say what is kept."""

import pytest

from tests.explanation.kept_explanations import CASES, said
from tests.report.kept_pages import kept


@pytest.mark.parametrize("name", CASES)
def test_an_explanation_says_what_is_kept(name):
    assert said()[name] == kept("explanations.txt")[name].splitlines()


def test_the_cases_of_explanations_are_those_that_are_kept():
    assert list(kept("explanations.txt")) == CASES
