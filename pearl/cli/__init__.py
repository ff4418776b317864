"""The command line: `pearl COMMAND`."""

from pearl.cli.commands import main

__all__ = ["main"]
