"""Writing of metrics.csv during a run; `pearl.planning.runs.load_metrics` reads the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from pearl.files import write_atomically
from pearl.runtime.protocol.channels import episodes
from pearl.training.checkpoints.state import RunState
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.training.loop_context import LoopContext


def mean_return(arrays: Buffers, last: int = 20) -> float | None:
    """Mean return of the last training episodes; None before the first has ended."""
    rings = list(episodes(arrays))
    newest: list[float] = []
    for ring, counter in rings:
        count = int(counter[0])
        first = max(count - -(-last // len(rings)), count - ring.size, 0)
        newest += [ring[i % ring.size] for i in range(first, count)]
    return float(np.mean(newest)) if newest else None


def episode_count(arrays: Buffers) -> int:
    """Finished training episodes."""
    return sum(int(counter[0]) for _, counter in episodes(arrays))


class Metrics:
    """The file: a header and rows.

    Of an existing file the rows up to the iteration of `state` are kept. The file is replaced
    whole, then appended to. A row that does not fit on the disk is noted in the log.
    """

    def __init__(self, loop: LoopContext, state: RunState) -> None:
        self._loop = loop
        self._losses = sorted(n for n in loop.arrays if n.startswith("loss."))
        columns = [
            *("env_steps", "updates", "wall_s", "cpu_s", "mean_return_20", "episodes", "eval_mean"),
            *(n.replace("loss.", "loss_") for n in self._losses),
            *("period_s", "predicted_period_s"),
        ]
        self._last = state.iteration, state.wall_s
        self._file: TextIO | None = None
        if loop.metrics is not None:
            kept = _rows(loop.metrics, state.iteration * loop.graph.env_steps)
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
            try:
                write_atomically(loop.metrics, text.getvalue().encode())
                self._file = loop.metrics.open("a", newline="", encoding="utf-8")
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

    def row(self, state: RunState) -> None:
        """Append a row from `state` and the arrays."""
        if not self._file:
            return
        loop, mean = self._loop, mean_return(self._loop.arrays)
        learnt = state.learning(loop.milestones.warm)
        values = [
            state.iteration * loop.graph.env_steps,
            learnt * loop.graph.updates,
            round(state.wall_s, 6),
            round(state.cpu_s, 6),
            "" if mean is None else round(mean, 4),
            episode_count(loop.arrays),
            "" if state.last_mean is None else round(state.last_mean, 4),
            *(float(loop.arrays[name][0]) for name in self._losses),
            *self._periods(state),
        ]
        try:
            csv.writer(self._file).writerow(values)
            self._file.flush()
        except OSError as error:
            state.log.note(f"metrics.csv ends here: {error.strerror}", restarts=0)
            self._close()

    def _periods(self, state: RunState) -> tuple[float | str, float]:
        """Seconds of an iteration since the row before, and those that the plan predicts.

        Empty before learning, when the loop is another one.
        """
        (at, wall_s), predicted_s = self._last, self._loop.plan.period_s
        self._last = state.iteration, state.wall_s
        if at < self._loop.milestones.warm or state.iteration == at:
            return "", predicted_s
        return (state.wall_s - wall_s) / (state.iteration - at), predicted_s


def _rows(path: Path, steps: int) -> list[Mapping[str, str]]:
    """The whole rows of a file up to env step `steps`, by column; none if there is no file."""
    if not steps or not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows: list[dict[str, Any]] = [*csv.DictReader(file)]
    return [
        row
        for row in rows
        if None not in row.values()
        and row["env_steps"].isdigit()
        and int(row["env_steps"]) <= steps
    ]
