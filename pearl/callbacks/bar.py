"""A progress bar by rich, which draws in notebooks and terminals alike."""

from __future__ import annotations

from typing import Any

from pearl.training.progress import describe_progress
from pearl.training.steering import Answer, Callback, Progress


class Bar(Callback):
    """Draws the progress of the run, its returns and its rate."""

    def __init__(self) -> None:
        self._bar: Any = None

    def on_progress(self, event: Progress) -> Answer:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        if self._bar is None:
            text = TextColumn("{task.fields[line]}", markup=False)
            self._bar = Bars(TextColumn("{task.description:<10}"), BarColumn(24), text)
            self._bar.start()
            self._task = self._bar.add_task("start", total=event.total_steps, line="")
        told = {
            "description": event.phase,
            "completed": event.env_steps,
            "line": describe_progress(event),
        }
        self._bar.update(self._task, **told)
        return None

    def on_end(self, event: Progress) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
