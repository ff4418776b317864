"""Writing of metrics.csv during a run; `pearl.planning.metrics_file` reads the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from pearl import run_folder
from pearl.planning.metrics_file import metrics_lines
from pearl.runtime.protocol.channels import count_episodes, mean_return
from pearl.training.training_run import TrainingRun

EVALUATION = "eval_mean", "eval_low", "eval_high"
"""Columns of the latest evaluation: its mean return, and its lowest and highest of an episode."""


class Metrics:
    """The file of the metrics of a run: a header and rows.

    Rows of an existing file up to the present iteration stay. The file is first replaced as a
    whole; then rows are appended. If the disk is full, the run's log reports this.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run, path, state = run, run.metrics_file, run.state
        self._losses = sorted(n for n in run.arrays if n.startswith("loss."))
        columns = [
            *("env_steps", "updates", "wall_s", "cpu_s", "mean_return_20", "episodes"),
            *EVALUATION,
            *(n.replace("loss.", "loss_") for n in self._losses),
            *("period_s", "predicted_period_s"),
        ]
        self._last = state.iteration, state.wall_s
        self._file: TextIO | None = None
        if path is not None:
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(_rows(path, state.iteration * run.graph.env_steps))
            try:
                run_folder.write(path.parent, path.name, text.getvalue().encode())
                self._file = run_folder.append_text(path.parent, path.name)
            except OSError as error:
                state.log.note(f"metrics.csv gets no new rows: {error.strerror}", restarts=0)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        with suppress(OSError):
            if self._file:
                self._file.close()
        self._file = None

    def append_row(self) -> None:
        """Append a row with the present numbers of the run."""
        if not self._file:
            return
        run, state, mean = self._run, self._run.state, mean_return(self._run.arrays)
        evaluated = state.last_mean, state.last_low, state.last_high
        values = [
            state.iteration * run.graph.env_steps,
            state.learning_iterations(run.milestones.warm) * run.graph.updates,
            round(state.wall_s, 6),
            round(state.cpu_s, 6),
            "" if mean is None else round(mean, 4),
            count_episodes(run.arrays),
            *("" if v is None else round(v, 4) for v in evaluated),
            *(float(run.arrays[name][0]) for name in self._losses),
            *self._periods(),
        ]
        try:
            csv.writer(self._file).writerow(values)
            self._file.flush()
        except OSError as error:
            state.log.note(f"metrics.csv ends here: {error.strerror}", restarts=0)
            self._close()

    def _periods(self) -> tuple[float | str, float]:
        """Seconds of an iteration since the row before, and the plan's prediction of them.

        The first is empty before learning starts, because that loop is another one.
        """
        state, predicted_s = self._run.state, self._run.plan.period_s
        (at, wall_s), self._last = self._last, (state.iteration, state.wall_s)
        if at < self._run.milestones.warm or state.iteration == at:
            return "", predicted_s
        return (state.wall_s - wall_s) / (state.iteration - at), predicted_s


def _rows(path: Path, steps: int) -> list[Mapping[str, str]]:
    """Read the complete rows of a file up to env step `steps`; none if there is no file."""
    if not steps:
        return []
    rows: list[dict[str, Any]] = [*csv.DictReader(metrics_lines(path))]
    return [
        row
        for row in rows
        if None not in row.values()
        and row["env_steps"].isdigit()
        and int(row["env_steps"]) <= steps
    ]
