"""A population as it goes: a live table on a terminal, a line an event elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from pearl.formatting import count

EVERY_S = 0.5
"""Between two drawings of the table."""
SHOWN = 12
"""Runs in the table at most: those under way, and then those that ended last."""


@dataclass(frozen=True)
class Row:
    """One run: its state in a word, env steps so far, and its latest return."""

    run: str
    state: str
    env_steps: int
    steps: int
    returned: float | None


Rows = Callable[[], Sequence[Row]]


class SweepDisplay:
    """Hears of a population; this one says nothing."""

    def print_event(self, line: str) -> None:
        """One event in words."""

    def refresh(self, rows: Rows) -> None:
        """Called often. rows: gives the runs, newest last."""


class _Lines(SweepDisplay):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def print_event(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class _Live(SweepDisplay):
    """Lines above, and the table below them."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=stream)
        self._live, self._drawn_s = Live(console=console, auto_refresh=False, transient=True), 0.0

    def print_event(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)

    def refresh(self, rows: Rows) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        if time.monotonic() - self._drawn_s < EVERY_S:
            return
        self._drawn_s = time.monotonic()
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("run", "", "env steps", "return"):
            table.add_column(name, justify="left" if name in ("run", "") else "right")
        for r in rows()[-SHOWN:]:
            cells = (r.run, r.state, f"{count(r.env_steps)}/{count(r.steps)}", count(r.returned))
            table.add_row(*map(Text, cells))
        self._live.update(table, refresh=True)


@contextmanager
def sweep_display(stream: TextIO | None = None) -> Iterator[SweepDisplay]:
    """A watcher that writes to `stream`, standard error if none is given."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _Lines(stream)
        return
    live = _Live(stream)
    with live._live:
        yield live
