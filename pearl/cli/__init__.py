"""The command line: `pearl COMMAND`. `--help` lists the commands in the order of these imports."""

from pearl.cli import inspection, planning, populations, training  # noqa: F401
from pearl.cli.application import app, main

__all__ = ["app", "main"]
