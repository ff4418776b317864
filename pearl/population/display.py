"""Show a running population: a live table on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from pearl.formatting import count, printable
from pearl.population.setting_results import SweepRun

DRAW_INTERVAL_S = 0.5
"""Time between two drawings of the table."""
ROWS = 12
"""Limit of the runs in the table: running ones first, then the last ones that ended."""

Runs = Callable[[], Sequence[SweepRun]]
"""Returns the runs so far, running ones last; a running one has its latest steps and return."""


class SweepDisplay:
    """Receives the events of a population; this base class shows nothing."""

    def print_event(self, line: str) -> None:
        """Print one event, a sentence."""

    def refresh(self, runs: Runs) -> None:
        """Draw the runs, unless they were drawn just now. Called often."""


class _Lines(SweepDisplay):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def print_event(self, line: str) -> None:
        print(printable(line), file=self._stream, flush=True)


class _Live(SweepDisplay):
    """Prints events as lines above the table."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=stream)
        self._live, self._drawn_s = Live(console=console, auto_refresh=False, transient=True), 0.0

    def print_event(self, line: str) -> None:
        self._live.console.print(printable(line), markup=False, highlight=False)

    def refresh(self, runs: Runs) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        if time.monotonic() - self._drawn_s < DRAW_INTERVAL_S:
            return
        self._drawn_s = time.monotonic()
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("run", "", "env steps", "return"):
            table.add_column(name, justify="left" if name in ("run", "") else "right")
        for r in runs()[-ROWS:]:
            env_steps = f"{count(r.env_steps or 0)}/{count(r.steps)}"
            cells = (r.run, r.status, env_steps, count(r.eval_mean))
            table.add_row(*map(Text, cells))
        self._live.update(table, refresh=True)


@contextmanager
def sweep_display(stream: TextIO | None = None) -> Iterator[SweepDisplay]:
    """Within this context, show a population on `stream`, by default standard error."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _Lines(stream)
        return
    live = _Live(stream)
    with live._live:
        yield live
