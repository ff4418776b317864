"""The numbers of a run as a table of comma-separated values."""

from __future__ import annotations

import csv
from pathlib import Path

from pearl.training.steering import Answer, Callback, Progress


class CsvLog(Callback):
    """Appends a row at each progress and evaluation to `path`, which starts with a header.

    A missing folder is made. An existing file is continued.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._columns: list[str] = []

    def on_progress(self, event: Progress) -> Answer:
        self._row(event)
        return None

    def on_evaluation(self, event: Progress) -> Answer:
        self._row(event)
        return None

    def _row(self, event: Progress) -> None:
        numbers = event.numbers(absent=True)
        if not self._columns:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size:
                with self.path.open(newline="", encoding="utf-8") as file:
                    self._columns = next(csv.reader(file))
            else:
                self._columns = ["env_steps", *numbers]
                with self.path.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow(self._columns)
        values = {"env_steps": event.env_steps, **numbers}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, extrasaction="ignore").writerow(values)
