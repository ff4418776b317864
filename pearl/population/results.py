"""`Sweep`: the results of a population, as tables, HTML page, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pearl.formats import latest, pearl_version
from pearl.formatting import NONE, count
from pearl.notebook import HasPage
from pearl.planning.plans import plain
from pearl.population.members import value_text
from pearl.population.packing import duration
from pearl.population.setting_results import SettingResult, SweepRun
from pearl.report.document import (
    Column,
    Detail,
    Facts,
    KeyFigure,
    LeadSentence,
    Page,
    Section,
    Table,
)
from pearl.report.figures.curves import SettingCurve, intervals, sweep_curves
from pearl.report.terminal import page_text

Status = Literal["planned", "running", "done", "failed", "interrupted"]
MOST = 16
"""Most settings of a figure, the best ones."""


@dataclass(frozen=True)
class Sweep(HasPage):
    """The results of a population. `pearl/schemas/sweep.json` lists the keys of the JSON.

    Attributes:
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
    schema: int = field(default=latest("sweep"))

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
                *(value_text(b["values"][key]) for key in self.over),
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
            self.settings, key=lambda s: (-(s.steps or 0), -(lowest if s.iqm is None else s.iqm))
        )

    def __str__(self) -> str:
        return page_text(self.page())

    def lead(self) -> tuple[LeadSentence, ...]:
        """Return what you got, what limits it and what would help most."""
        best = next((s for s in self.ranked() if s.iqm is not None), None)
        done = sum(r.status == "done" for r in self.runs)
        if best is None or best.iqm is None:
            answer = "A schedule" if self.status == "planned" else "No result"
            got = LeadSentence("What you get", answer, f": {self.schedule}.")
            return (got,)
        bad = len([r for r in self.runs if r.status in ("failed", "died", "interrupted")])
        lost = f"; {bad} of {len(self.runs)} runs did not finish" if bad else ""
        text = f", the interquartile mean of {best.done} runs{lost}."
        got = LeadSentence("What you got", f"{best.setting} scores {count(best.iqm)}", text)
        others = [s for s in self.ranked() if s is not best and s.high is not None]
        close = [s for s in others if best.low is not None and (s.high or 0.0) >= best.low]
        if not others:
            limit = LeadSentence("How sure", "One setting", ": nothing to compare it with.")
        elif close:
            text = f": {len(close)} of {len(others)} others have intervals that overlap with it."
            limit = LeadSentence("How sure", "Not sure yet", text)
        else:
            limit = LeadSentence("How sure", "Sure", ": no other interval overlaps with it.")
        seeds = len(self.seeds)
        if close and others:
            text = f" than {seeds}: intervals shrink with the root of their number."
            helps = LeadSentence("What would help most", "More seeds", text)
        else:
            text = f": {done} runs in {duration(self.wall_s)} settled it."
            helps = LeadSentence("What would help most", "Nothing more", text)
        return got, limit, helps

    def key_figures(self) -> tuple[KeyFigure, ...]:
        """Return the best result, the number of runs, and the time."""
        best = next((s for s in self.ranked() if s.iqm is not None), None)
        done = sum(r.status == "done" for r in self.runs)
        found = []
        if best is not None and best.low is not None:
            note = f"{count(best.low)} – {count(best.high)}, 95 % interval"
            found.append(KeyFigure("best return", count(best.iqm), "", note))
        found.append(KeyFigure("runs", f"{done}", f"of {len(self.runs)}", self.status))
        found.append(KeyFigure("settings", f"{len(self.settings)}", "", f"{len(self.seeds)} seeds"))
        if self.status != "planned":
            cpu_s = sum(r.cpu_s or 0.0 for r in self.runs)
            note = f"{duration(cpu_s)} CPU of the runs"
            found.append(KeyFigure("time", duration(self.wall_s), "", note))
        return tuple(found)

    def page(self, written: str = "") -> Page:
        """Return the sweep as a page. written: the date, for the footer; empty for none."""
        shown = self.tables()
        status = self.status if self.message is None else f"{self.status}: {self.message}"
        head = Facts("", (("status", status), ("schedule", self.schedule)))
        details = [Detail(t.title, (replace(t, title=""),)) for t in shown]
        if (runs := self._runs()) is not None:
            details.append(Detail("Every run", (runs,)))
        footer = (
            f"pearl {pearl_version()} · interquartile means with 95 % intervals of the stratified "
            "bootstrap (Agarwal et al. 2021) · returns measured"
        )
        return Page(
            self.name,
            (head, *shown),
            footer=footer + (f" · written {written}" if written else ""),
            subtitle=f"{self.kind.capitalize()} · {len(self.runs)} runs",
            lead=self.lead(),
            figures=self.key_figures(),
            sections=self.sections(),
            details=(Detail("The sweep", (head,)), *details),
        )

    def _runs(self) -> Table | None:
        if self.status == "planned":
            return None
        numbers = ("return", "last", "env steps", "env steps/s", "CPU")
        heading = (Column("run"), Column("status"), *(Column(n, "right") for n in numbers))
        rows = tuple(
            (
                r.run,
                r.status,
                count(r.eval_mean),
                count(r.last_eval_mean),
                count(r.env_steps),
                count(r.env_steps_per_s),
                NONE if r.cpu_s is None else duration(r.cpu_s),
            )
            for r in self.runs
        )
        return Table("", heading, rows)

    def sections(self) -> tuple[Section, ...]:
        """Return the figures of the settings; none of a tournament or before a run is done."""
        ranked = [
            SettingCurve(s.setting, s.curve, s.low, s.iqm, s.high)
            for s in self.ranked()
            if s.iqm is not None and s.low is not None and s.high is not None
        ]
        if self.kind == "tournament" or not ranked:
            return ()
        best = ranked[0]
        apart = [s for s in ranked[1:] if s.high < best.low]
        finding = f"{best.name} is best, with {count(best.mean)}"
        if len(ranked) > 1:
            close = len(ranked) - 1 - len(apart)
            finding += f"; {close} of {len(ranked) - 1} others may be as good" if close else ""
        guide = "Interquartile mean over the seeds, with its 95 % interval."
        found = [("Settings", f"{finding}.", guide, intervals(ranked[:MOST]))]
        found.append(
            ("Learning", "", "Grey: the 95 % interval of the best setting.", sweep_curves(ranked))
        )
        return tuple(
            Section(title, finding, guide, (figure,), brief=True)
            for title, finding, guide, figure in found
            if figure is not None
        )

    def save(self, path: str | Path) -> None:
        """Write the report atomically, in the format of the suffix: .html, .json, .csv or .txt.

        Raises:
            SpecError: the suffix is another one.
        """
        self._save(path, "sweep", csv=self._csv, txt=lambda: f"{self}\n")

    def _csv(self) -> str:
        plain_keys = [f for f in SweepRun.__dataclass_fields__ if f != "values"]
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, [*plain_keys, *self.over], lineterminator="\n")
        writer.writeheader()
        for run in self.runs:
            row = {k: getattr(run, k) for k in plain_keys}
            writer.writerow(row | {k: value_text(v) for k, v in run.values.items()})
        return out.getvalue()
