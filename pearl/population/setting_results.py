"""The results of runs of a population, and of a setting over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pearl.planning.metrics_file import load_metrics
from pearl.planning.runs import load_run
from pearl.population.schedulers import RunStage
from pearl.population.statistics import interval

POINTS = 60
"""Limit of the points of a curve."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a population. The measured fields are None before the run has ended.

    run: name of the run, and of its folder.
    setting: name of its setting.
    seed: of all random streams of the run.
    values: dotted key of the spec → value that overrides the spec.
    steps: target env steps of its last stage.
    parent: the run that it was branched from, or None.
    status: waiting, running, done, failed (the run reported an error), died (its process ended
        without an error) or interrupted.
    eval_mean: mean return of the best policy in its final evaluation.
    last_eval_mean: mean return of the last policy in its final evaluation.
    env_steps: that the run has done.
    env_steps_per_s: rate of its training.
    wall_s: wall time of the run in seconds.
    cpu_s: CPU time of the run in seconds.
    restarts: of its process.
    message: why the run is not done, or None.
    """

    run: str
    setting: str
    seed: int
    values: Mapping[str, object]
    steps: int
    parent: str | None = None
    status: str = "waiting"
    eval_mean: float | None = None
    last_eval_mean: float | None = None
    env_steps: int | None = None
    env_steps_per_s: float | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    restarts: int = 0
    message: str | None = None

    @classmethod
    def waiting(cls, stage: RunStage, **more: Any) -> SweepRun:
        """Make a run that has not started. more: further fields."""
        s = stage
        return cls(s.run, s.setting, s.seed, dict(s.values), s.steps, s.parent, **more)

    @classmethod
    def done(cls, stage: RunStage, folder: Path, restarts: int) -> SweepRun:
        """Make a run that has finished its stage, from its folder."""
        run = load_run(folder)
        keys = ("env_steps", "env_steps_per_s", "wall_s", "cpu_s")
        means = {key: run.returns[key] for key in ("eval_mean", "last_eval_mean")}
        measured = {key: getattr(run, key) for key in keys} | means
        return cls.waiting(stage, status="done", restarts=restarts, **measured)


@dataclass(frozen=True)
class SettingResult:
    """The results of one setting over its seeds.

    setting: its name.
    values: dotted key of the spec → value that overrides the spec.
    runs: number of its runs.
    done: number of its runs that are done.
    steps: largest number of env steps of a run that is done.
    iqm: interquartile mean of `eval_mean`; None before a run is done.
    low: lower end of the 95 % interval of `iqm`.
    high: upper end of the 95 % interval of `iqm`.
    curve: (env steps, iqm, low, high) of the evaluations during training.
    """

    setting: str
    values: Mapping[str, object]
    runs: int
    done: int
    steps: int | None
    iqm: float | None
    low: float | None
    high: float | None
    curve: tuple[tuple[float, float, float, float], ...] = ()


def summarise(runs: Sequence[SweepRun], folder: Path | None) -> SettingResult:
    """Summarise a setting over its runs.

    folder: of the run folders; None for no interval and no curve.
    """
    done = [r for r in runs if r.status == "done"]
    scores = [r.eval_mean for r in done if r.eval_mean is not None]
    returns = interval(scores) if scores and folder is not None else None
    return SettingResult(
        runs[0].setting,
        runs[0].values,
        len(runs),
        len(done),
        max((r.env_steps or 0 for r in done), default=None),
        returns.mean if returns else None,
        returns.low if returns else None,
        returns.high if returns else None,
        curve(done, folder) if folder is not None else (),
    )


def curve(runs: Sequence[SweepRun], folder: Path) -> tuple[tuple[float, float, float, float], ...]:
    """Summarise the evaluations of the runs of one setting, up to the env steps that all reached.

    Returns (env steps, interquartile mean, low, high) of every point.
    """
    lines = []
    for run in runs:
        rows = load_metrics(folder / run.run / "metrics.csv")
        points = [(r["env_steps"], r["eval_mean"]) for r in rows if "eval_mean" in r]
        lines.append(np.array(points, np.float64).reshape(-1, 2))
    if not lines or not all(len(line) for line in lines):
        return ()
    first, last = max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines)
    summaries = []
    for x in np.linspace(first, last, POINTS if last > first else 1):
        scores = [line[np.searchsorted(line[:, 0], x, "right") - 1, 1] for line in lines]
        summaries.append((float(x), *interval(scores)))
    return tuple(summaries)
