"""What is planned for actors and slices of GPUs, as kept."""

import pytest

from tests.report.kept_values import figures, named


@pytest.mark.parametrize(("file", "name"), named(["balances.json", "slices.json"]))
def test_plans_are_those_that_are_kept(file: str, name: str) -> None:
    found, expected = figures(file, name)
    assert found == expected
