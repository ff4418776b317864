"""The page of verdicts as plain text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pearl.formatting import si
from pearl.report.terminal import terminal_width

if TYPE_CHECKING:
    from pearl.advice import Advice
    from pearl.advice.case import Finding

INDENT = "  "


def text(advice: Advice) -> str:
    """The whole page for this terminal."""
    said: list[str] = []
    parts = [verdict_text(v, said) for v in advice.verdicts]
    return "\n".join([*parts, footer(advice)])


def verdict_text(verdict: Finding, said: list[str]) -> str:
    """A question, its answer in lines of the terminal's width, and the command.

    said: commands that the page has shown; the page shows each once, and this one is added.
    """
    width = min(terminal_width(), 100)
    lines = textwrap.wrap(
        _printable(verdict.answer), width, initial_indent=INDENT, subsequent_indent=INDENT
    )
    command = [] if verdict.command in said else [f"{INDENT}{_printable(verdict.command)}"]
    said.append(verdict.command)
    return "\n".join([_printable(verdict.question), *lines, *command])


def footer(advice: Advice) -> str:
    """What the shares mean, and what was left out."""
    lines = [
        f"{advice.draws} draws of the times from the 90 % bands of their estimates, seed "
        f"{advice.seed} (docs/theory.md); {si(advice.seconds, 's')}."
    ]
    if advice.settled:
        lines.append(f"No choice is left about: {'; '.join(advice.settled)} (--about shows each).")
    if advice.left_out:
        lines.append(f"No time was left for: {'; '.join(advice.left_out)}.")
    return "\n".join(lines)


def _printable(words: str) -> str:
    """Text without control characters, which a name may hold."""
    return "".join(c if c.isprintable() else "�" for c in words)
