"""Commands about plans print, write and call what is kept."""

import pytest

from tests.cli.kept_commands import COMMANDS, ran
from tests.report.kept_pages import kept
from tests.report.kept_texts import COLUMNS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_what_is_kept(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", COLUMNS)
    assert ran(COMMANDS[name]) == kept("commands.txt")[name].splitlines()


def test_the_commands_are_those_that_are_kept():
    assert list(kept("commands.txt")) == [*COMMANDS]
