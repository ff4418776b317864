"""A comparison of runs or plans: one table, the differences in placement, and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.formatting import NONE, count, listed, number, si
from pearl.notebook import HasPage
from pearl.planning.plans import SCHEMA, Plan
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.bands_text import range_text, rate_band
from pearl.report.document import (
    Column,
    Detail,
    Drawing,
    KeyFigure,
    LeadSentence,
    Page,
    Section,
    Table,
)
from pearl.report.figures.bars import BarRow, bar_chart
from pearl.report.figures.curves import SettingCurve, points_of, sweep_curves
from pearl.report.figures.timeline import timeline
from pearl.report.lead import BUSY, NOTHING, percent, waited
from pearl.report.plan_page import what_it_is
from pearl.report.report import Report
from pearl.report.terminal import page_text


@dataclass(frozen=True)
class Side:
    """One of the compared plans or runs.

    name: the folder of a run, the file of a plan, or the name of a spec.
    curve: (env steps, return) of its evaluations; empty for a plan.
    """

    name: str
    plan: Plan
    run: Run | None = None
    curve: tuple[tuple[float, float], ...] = ()
    subtitle: str = ""

    @property
    def rate(self) -> float:
        """Env steps (iterations) per second: measured for a run, predicted for a plan; 0 if it is
        not known."""
        if self.run is not None:
            return self.run.env_steps_per_s or 0.0
        return self.plan.rates.get("env_steps_per_s") or 1 / self.plan.period_s

    @property
    def rate_text(self) -> str:
        """The rate; `–` if it is not known."""
        return count(self.rate or None)


def side_of_run(report: Report) -> Side:
    """Return the side of a run, named by its folder."""
    assert report.run is not None
    name = Path(report.run.out).name if report.run.out else report.plan.host
    rows = report.learning()
    curve = points_of(rows, "eval_mean", changes=True) or points_of(rows, "mean_return_20")
    subtitle = what_it_is(report.plan, report.system, "run")
    return Side(name, report.plan, report.run, tuple(curve), subtitle)


def side_of_plan(name: str, plan: Plan) -> Side:
    """Return the side of a plan, with a name."""
    return Side(name, plan, subtitle=what_it_is(plan, None, "plan"))


@dataclass(frozen=True)
class SideBySide(HasPage):
    """Several plans or several runs. The first is the reference for the others."""

    sides: tuple[Side, ...]

    def __str__(self) -> str:
        return page_text(self.page())

    def to_json(self) -> dict[str, Any]:
        """Return a plain object: `sides` as the objects of plans or runs, each with its `name`."""
        found = [
            {"name": s.name, **(s.plan.to_json() if s.run is None else s.run.to_json())}
            for s in self.sides
        ]
        return {"schema": SCHEMA, "sides": found}

    def page(self, written: str = "") -> Page:
        """Return the comparison as a page. written: the date, for the footer; empty for none."""
        what = "Runs" if self.sides[0].run is not None else "Plans"
        table, places = self.table(), self.placement()
        names = listed([s.name for s in self.sides])
        figures = tuple(
            KeyFigure(s.name, s.rate_text, "env steps/s", self._beside(s)) for s in self.sides
        )
        footer = f"pearl {self.sides[0].plan.pearl_version}"
        footer += " · " + " · ".join(
            f"{s.name}: spec {s.plan.spec_sha256[:8]}, {'measured' if s.run else 'predicted'}"
            for s in self.sides
        )
        timelines = []
        for s in self.sides[:4]:
            figure = timeline(s.plan, s.run)
            if figure is not None:
                timelines.append(Drawing(s.name, figure.sentence, figure.draw))
        sections = (
            Section("Side by side", "", "No value is marked as best: that depends on your goal.",
                    (table,), brief=True),
            self._speed(),
            self._learning(),
            Section("Who does what", self._moved(), "", (places,)),
            Section("Two steady iterations", "", "Each on a scale of its own.", tuple(timelines)),
        )  # fmt: skip
        return Page(
            f"{what} side by side",
            (table, places),
            footer=footer + (f" · written {written}" if written else ""),
            subtitle=names,
            lead=self.lead(),
            figures=figures,
            sections=tuple(s for s in sections if s is not None and s.blocks),
            details=(Detail("What each is", (self._subtitles(),)),),
        )

    def _subtitles(self) -> Table:
        rows = tuple((s.name, s.subtitle) for s in self.sides)
        return Table("", (Column("name"), Column("what it is")), rows)

    def _beside(self, s: Side) -> str:
        first = self.sides[0]
        if s is first or not first.rate:
            return "measured" if s.run is not None else "predicted"
        return f"{s.rate / first.rate:.2f} × {first.name}"

    def lead(self) -> tuple[LeadSentence, ...]:
        """Return which is fastest, which learned best, and whether the difference matters."""
        ranked = sorted(self.sides, key=lambda s: -s.rate)
        best, next_ = ranked[0], ranked[1]
        gain = best.rate / next_.rate - 1 if next_.rate else 0.0
        if gain < NOTHING:
            rates = f": {best.name} and {next_.name} are within {percent(NOTHING)}."
            fast = LeadSentence("Which is faster", "It does not matter", rates)
        else:
            rates = f": {count(best.rate)} env steps/s, {percent(gain)} more than {next_.name}"
            rates += f"{self._disturbed()}."
            fast = LeadSentence("Which is faster", best.name, rates)
        scored = [(s, _best_return(s)) for s in self.sides]
        known = [(s, value) for s, value in scored if value is not None]
        lead = [fast]
        if len(known) > 1:
            top, value = max(known, key=lambda pair: pair[1])
            others = [f"{s.name} {number(v)}" for s, v in known if s is not top]
            same = all(v == value for _, v in known)
            answer = "All the same" if same else top.name
            text = f": {number(value)}." if same else f": {number(value)}; {listed(others)}."
            lead.insert(0, LeadSentence("Which learned more", answer, text))
        moved = self._moved()
        if moved:
            lead.append(LeadSentence("What differs", moved.rstrip("."), "."))
        else:
            digests = {s.plan.spec_sha256 for s in self.sides}
            specs = "the specs differ" if len(digests) > 1 else "the specs are the same"
            text = f": every task runs in the same place, in the same way; {specs}."
            lead.append(LeadSentence("What differs", "Not the placement", text))
        return tuple(lead)

    def _disturbed(self) -> str:
        """What other programs took of these runs, if any run had to wait for a core."""
        shares = [waited(s.run) if s.run is not None else 0.0 for s in self.sides]
        if max(shares) < BUSY:
            return ""
        taken = listed([percent(share) for share in shares])
        return f"; other programs had the cores for {taken} of the time, so this may change"

    def _moved(self) -> str:
        """Return the tasks that run on another device or in another variant; empty for none."""
        tasks = dict.fromkeys(t.task for s in self.sides for t in s.plan.tasks)
        moved = [t for t in tasks if len({_place(s.plan, t) for s in self.sides}) > 1]
        if not moved:
            return ""
        return f"{listed(moved)} run on another device or variant."

    def table(self) -> Table:
        """Return one row per figure, one column per side."""
        rows: list[tuple[str, Callable[[Side], str]]] = [
            ("env steps/s", lambda s: s.rate_text),
            ("predicted", lambda s: count(s.plan.rates.get("env_steps_per_s"))),
            ("90 % band", lambda s: range_text(ends) if (ends := rate_band(s.plan)) else NONE),
            ("one iteration", lambda s: si(s.plan.period_s, "s")),
            ("power, modelled", lambda s: si(s.plan.power_w, "W")),
            ("env steps/J", lambda s: count(s.plan.env_steps_per_j)),
            ("best return", lambda s: _text(_best_return(s))),
            ("solved after", _solved),
            ("whole run", _whole),
            ("env steps", lambda s: count(s.run.env_steps) if s.run else NONE),
        ]
        cells = [(name, *(made(s) for s in self.sides)) for name, made in rows]
        shown = tuple(row for row in cells if any(cell != NONE for cell in row[1:]))
        columns = (Column(""), *(Column(s.name, "right") for s in self.sides))
        return Table("", columns, shown)

    def placement(self) -> Table:
        """Return the place of each task in each plan."""
        tasks = dict.fromkeys(t.task for s in self.sides for t in s.plan.tasks)
        rows = tuple((t, *(_place(s.plan, t) for s in self.sides)) for t in tasks)
        simulated = {name for s in self.sides for name in s.plan.simulated}
        return Table("", (Column("task"), *(Column(s.name) for s in self.sides)), rows).marked(
            simulated
        )

    def _speed(self) -> Section | None:
        bars = [BarRow(s.name, s.rate, f"{s.rate_text} env steps/s") for s in self.sides]
        figure = bar_chart(bars, "Env steps per second of each plan or run.")
        return Section("Speed", "", "", (figure,)) if figure else None

    def _learning(self) -> Section | None:
        curves = [
            SettingCurve(s.name, [(x, y, y, y) for x, y in s.curve], 0.0, 0.0, 0.0)
            for s in self.sides
        ]
        figure = sweep_curves(curves)
        return Section("Learning", "", "Evaluations of each run.", (figure,)) if figure else None


def _place(plan: Plan, task: str) -> str:
    found = [t for t in plan.tasks if t.task == task]
    if not found:
        return NONE
    copies = f", {len(found)} copies" if len(found) > 1 else ""
    return f"{words.device_name(found[0].device, plan.simulated)}, {found[0].variant}{copies}"


def _whole(s: Side) -> str:
    if s.run is None:
        return NONE
    return si(s.run.solution.end_s if s.run.solution is not None else s.run.wall_s, "s")


def _best_return(s: Side) -> float | None:
    if s.run is None:
        return None
    value = s.run.returns.get("eval_mean")
    return s.run.returns.get("mean_last_20") if value is None else value


def _text(value: float | None) -> str:
    return NONE if value is None else number(value)


def _solved(s: Side) -> str:
    solution = s.run.solution if s.run is not None else None
    if solution is None or solution.threshold is None:
        return NONE
    return "no" if solution.threshold_s is None else si(solution.threshold_s, "s")
