"""`Sweep`: the results of a population, as tables, HTML page, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formatting import NONE, count
from pearl.planning.plans import SCHEMA, pearl_version, plain
from pearl.planning.runs import load_metrics, load_run
from pearl.population.members import shown
from pearl.population.packing import duration
from pearl.population.schedulers import RunStage
from pearl.population.statistics import interval
from pearl.report.document import Box, Column, Drawing, Facts, Label, Page, Table
from pearl.report.drawings import COLOURS, MARGIN, WIDTH, curves, ticks
from pearl.report.html import page_html
from pearl.report.terminal import page_text

Status = Literal["planned", "running", "done", "failed", "interrupted"]
SUFFIXES = (".html", ".json", ".csv", ".txt")
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


@dataclass(frozen=True)
class Sweep:
    """The results of a population. `docs/contract.md` lists the keys of the JSON.

    schema: version of the JSON.
    status: planned, running, done, failed or interrupted.
    kind: sweep, asha or tournament.
    name: of the spec.
    spec_sha256: setting → digest of its spec.
    seeds: of every setting.
    over: dotted key of the spec → values that vary.
    options: of asha or the tournament.
    packing: runs at once, cores of each, the prediction, and the `others` that were compared.
    schedule: the packing in one sentence.
    plans: setting → the file of its plan in the folder.
    settings: results of every setting.
    runs: results of every run.
    board: the leaderboard of a tournament, best first.
    history: every decision and every end, in order.
    wall_s: wall time of the sweep in seconds, all resumed parts together.
    message: of a failure, or None.
    out: the folder; None if nothing was to run.
    """

    status: Status
    kind: str
    name: str
    spec_sha256: Mapping[str, str]
    seeds: tuple[int, ...]
    over: Mapping[str, tuple[object, ...]]
    options: Mapping[str, int]
    packing: Mapping[str, Any]
    schedule: str
    plans: Mapping[str, str]
    settings: tuple[SettingResult, ...]
    runs: tuple[SweepRun, ...]
    board: tuple[Mapping[str, Any], ...]
    history: tuple[Mapping[str, Any], ...]
    wall_s: float
    message: str | None = None
    out: str | None = None
    schema: int = field(default=SCHEMA)

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, without `out`."""
        content = asdict(self)
        del content["out"]
        content["pearl_version"] = pearl_version()
        return plain(content)  # type: ignore[no-any-return]

    def tables(self) -> tuple[Table, ...]:
        """List the tables: the leaderboard or the settings, and the runs that are not done.

        A planned sweep has its schedule only.
        """
        if self.status == "planned":
            return (self._timeline(),) if self.kind == "sweep" else ()
        return tuple(t for t in (self._board() or self._settings(), self._not_done()) if t)

    def _timeline(self) -> Table:
        heading = (
            Column("run", folds=True),
            *(Column(name, "right") for name in ("cores", "start", "end")),
        )
        slots = self.packing["slots"]
        rows = tuple(
            (
                entry["run"],
                ", ".join(map(str, slots[entry["slot"]])),
                duration(entry["begin_s"]),
                duration(entry["end_s"]),
            )
            for entry in self.packing["timeline"]
        )
        note = "Predicted training time only, without process starts and evaluations."
        return Table("Schedule", heading, rows, (note,))

    def _settings(self) -> Table:
        heading = (
            Column("setting", folds=True),
            *(Column(n, "right") for n in ("runs", "env steps", "return, IQM", "95 % interval")),
        )
        rows = tuple(
            (
                s.setting,
                f"{s.done} of {s.runs}",
                count(s.steps),
                count(s.iqm),
                NONE if s.low is None else f"{count(s.low)} – {count(s.high)}",
            )
            for s in self.ranked()
        )
        note = "Return: mean of the final evaluation of the best policy of each run."
        return Table("Settings, best first", heading, rows, (note,))

    def _board(self) -> Table | None:
        if self.kind != "tournament":
            return None
        columns = ("score", "env steps", *self.over)
        heading = (Column("run"), *(Column(n, "right") for n in columns))
        rows = tuple(
            (
                b["run"],
                count(b["score"]),
                count(b["steps"]),
                *(shown(b["values"][key]) for key in self.over),
            )
            for b in self.board
        )
        note = "Score: mean return of the last policy in its final evaluation."
        return Table("Leaderboard", heading, rows, (note,))

    def _not_done(self) -> Table | None:
        runs = [r for r in self.runs if r.status not in ("done", "waiting")]
        if not runs:
            return None
        heading = (Column("run", folds=True), Column("status"), Column("reason", folds=True))
        rows = tuple((r.run, r.status, r.message or NONE) for r in runs)
        return Table("Runs that did not finish", heading, rows)

    def ranked(self) -> list[SettingResult]:
        """Sort the settings by env steps, then by return, best first."""
        lowest = -float("inf")
        return sorted(
            self.settings,
            key=lambda s: (-(s.steps or 0), -(lowest if s.iqm is None else s.iqm)),
        )

    def facts(self) -> tuple[tuple[str, str], ...]:
        """List label and text of the facts at the head."""
        done = sum(r.status == "done" for r in self.runs)
        cpu_s = sum(r.cpu_s or 0.0 for r in self.runs)
        facts = [
            ("status", self.status if self.message is None else f"{self.status}: {self.message}"),
            ("runs", f"{done} of {len(self.runs)} done"),
            ("schedule", self.schedule),
        ]
        if self.status != "planned":
            facts.append(
                ("time", f"{duration(self.wall_s)} wall, {duration(cpu_s)} CPU of the runs")
            )
        return tuple(facts)

    def __str__(self) -> str:
        return page_text(self.page())

    def page(self) -> Page:
        """Return the sweep as a page."""
        return Page(
            f"PEARL {self.kind} of {self.name}",
            (Facts("", self.facts()), *self.drawings(), *self.tables()),
            footer=f"Written by pearl {pearl_version()}. Interquartile means with 95 % intervals "
            "of the stratified bootstrap (Agarwal et al. 2021).",
        )

    def drawings(self) -> tuple[Drawing, ...]:
        """Draw the intervals of the settings and their curves over env steps.

        A tournament has no drawings.
        """
        best = [s for s in self.ranked() if s.iqm is not None][:COLOURS]
        if self.kind == "tournament" or not best:
            return ()
        lines = [(i, s.setting, [(x, y) for x, y, *_ in s.curve]) for i, s in enumerate(best)]
        bands = [(i, [(x, a, b) for x, _, a, b in s.curve]) for i, s in enumerate(best)]
        drawings = _intervals(best), curves("Return during training", lines, bands)
        return tuple(d for d in drawings if d)

    def save(self, path: str | Path) -> None:
        """Write the report atomically, in the format of the suffix: .html, .json, .csv or .txt.

        Raises:
            SpecError: the suffix is another one.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".json":
            text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        elif suffix == ".csv":
            text = self._csv()
        elif suffix == ".txt":
            text = f"{self}\n"
        elif suffix == ".html":
            text = page_html(self.page())
        else:
            raise SpecError(
                f"sweep {path}: suffix {suffix or 'none'!r}; the suffix selects the format and "
                f"must be one of {', '.join(SUFFIXES)}"
            )
        write_atomically(path, text.encode())

    def _csv(self) -> str:
        plain_keys = [f for f in SweepRun.__dataclass_fields__ if f != "values"]
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, [*plain_keys, *self.over], lineterminator="\n")
        writer.writeheader()
        for run in self.runs:
            row = {k: getattr(run, k) for k in plain_keys}
            writer.writerow(row | {k: shown(v) for k, v in run.values.items()})
        return out.getvalue()


def _intervals(settings: Sequence[SettingResult]) -> Drawing | None:
    """Draw one row a setting: its interval as a box, its mean as a number."""
    ends = [v for s in settings for v in (s.low, s.high) if v is not None]
    low, high = min(ends), max(ends)
    if not high > low:
        low, high = low - 1.0, high + 1.0
    left = min(20 + 6.8 * max(len(s.setting) for s in settings), WIDTH / 2.5) + MARGIN / 4
    scale, row = (WIDTH - left - 90) / (high - low), 26.0
    boxes, labels, lines = [], [], []
    bottom = 8 + row * len(settings)
    for tick in ticks(low, high, 6):
        x = left + (tick - low) * scale
        lines.append((x, 4.0, x, bottom))
        labels.append(Label(x, bottom + 16, f"{tick:,.6g}", "middle"))
    for i, s in enumerate(settings):
        assert s.iqm is not None
        assert s.low is not None
        assert s.high is not None
        y, x = 8 + i * row, left + (s.low - low) * scale
        text = f"{s.setting}: {count(s.iqm)}, 95 % interval {count(s.low)} to {count(s.high)}"
        labels.append(Label(left - 10, y + 13, s.setting[-60:], "end"))
        labels.append(Label(left + (s.high - low) * scale + 8, y + 13, count(s.iqm)))
        boxes.append(Box(x, y, max((s.high - s.low) * scale, 3.0), 16, i, "", text))
    return Drawing(
        "Return of the settings",
        "Interquartile mean over the seeds (the number) with its 95 % interval (the box).",
        bottom + 26,
        tuple(boxes),
        tuple(labels),
        tuple(lines),
    )


def summarise(runs: Sequence[SweepRun], folder: Path | None) -> SettingResult:
    """Summarise a setting over its runs.

    folder: of the run folders; None for no interval and no curve.
    """
    done = [r for r in runs if r.status == "done"]
    scores = [r.eval_mean for r in done if r.eval_mean is not None]
    returns = interval([scores]) if scores and folder is not None else None
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
        summaries.append((float(x), *interval([scores])))
    return tuple(summaries)
