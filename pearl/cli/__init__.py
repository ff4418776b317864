"""The command line: `pearl COMMAND`. `--help` lists the commands in the order of these imports."""

from pearl.cli import specs, machine, planning, training  # noqa: F401, I001
from pearl.cli.application import app, main

__all__ = ["app", "main"]
