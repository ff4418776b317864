"""`Report`: the decisions of a plan and, with a run, their results. Terminal text, HTML, JSON.

`Report.page` orders sentences, figures and tables; `pearl.report.terminal` and
`pearl.report.html` show the page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.notebook import HasPage
from pearl.planning.metrics_file import Row, load_metrics
from pearl.planning.plans import Plan
from pearl.planning.runs import Run, load_run
from pearl.report import origin, plan_page, run_page, tables
from pearl.report.document import Page, Section
from pearl.report.lead import plan_lead, run_lead
from pearl.report.run_trace import run_trace
from pearl.report.terminal import page_text, terminal_width
from pearl_devices.validation import check_type

if TYPE_CHECKING:
    from pearl.explanation import Explanation
    from pearl.spec.system import StaticSpec

SAVED_WIDTH = 120
"""Characters of a line in a report that is saved as text."""


@dataclass(frozen=True)
class Report(HasPage):
    """A plan, and the run of the plan, if any.

    Attributes:
        system: the spec of the plan, for the heading.
        metrics: rows of `metrics.csv` for the learning curve; None reads them from the run's
            folder, if the run has one.
        explanation: of the plan, for its section.
        front: plans of the same problem by rising power, for a section of the page of a plan.
    """

    plan: Plan
    run: Run | None = None
    system: StaticSpec | None = None
    metrics: tuple[Row, ...] | None = None
    explanation: Explanation | None = None
    front: Sequence[Plan] = ()

    def __post_init__(self) -> None:
        problems = check_type("report: plan", self.plan, Plan, "a Plan")
        problems += check_type("report: run", self.run, Run | None, "a Run, as `train` returns it,")
        if problems:
            raise SpecError(*problems)

    def __str__(self) -> str:
        return self.text(terminal_width())

    def text(self, width: int, *, verbose: bool = False) -> str:
        """Return the report as plain text in lines of at most `width` characters (at least 60).

        Args:
            verbose: with all details, which come first, so that the result is next to the prompt.
        """
        return page_text(self.page(), width, details=verbose)

    def page(self, written: str = "") -> Page:
        """Return the report as a page. written: the date, for the footer; empty for none."""
        plan, run, e = self.plan, self.run, self.explanation
        platform = self.system.platform if self.system is not None else None
        if platform is None and plan.problem is not None:
            platform = plan.problem.costs.platform
        title, subtitle = plan_page.heading(plan, self.system, "plan" if run is None else "run")
        sections: list[Section | None] = []
        if run is None:
            lead = plan_lead(plan, e.help_sentence() if e else None)
            figures = plan_page.key_figures(plan)
            sections += [
                plan_page.graph_section(plan),
                plan_page.timeline_section(plan, platform),
                plan_page.load_section(plan),
            ]
        else:
            lead, figures = run_lead(run), run_page.key_figures(run)
            sections += [
                run_page.learning_section(run, self.learning()),
                run_page.timeline_section(run, platform),
                plan_page.graph_section(plan),
                run_page.ratio_section(run),
                run_page.time_section(run),
            ]
        sections += e.sections() if e else ()
        if run is None and self.front:
            from pearl.report.front_section import front_section  # imports the solver

            sections.append(front_section(self.front))
        sections.append(plan_page.roofline_section(plan, run, platform))
        more = e.details() if e else ()
        details = plan_page.details(plan, platform, more)
        blocks = plan_page.short_tables(plan) if run is None else run_page.short_tables(run)
        return Page(
            title,
            (*blocks, *(e.short_blocks() if e else ())),
            tables.SIMULATED if run is not None and run.simulated else "",
            origin.footer(plan, run, written),
            subtitle,
            tuple(s.marked(plan.simulated) for s in lead),
            figures,
            tuple(s.marked(plan.simulated) for s in sections if s is not None),
            (*(run_page.details(run) if run is not None else ()), *details),
        )

    def learning(self) -> tuple[Row, ...]:
        """Return the rows of the learning curve; none without a run folder."""
        if self.metrics is not None:
            return self.metrics
        if self.run is None or self.run.out is None:
            return ()
        return load_metrics(Path(self.run.out) / "metrics.csv")

    def to_json(self) -> dict[str, Any]:
        """Return the object of the run with its plan, or of the plan without a run; with the key
        `explanation`, if there is one."""
        value = self.plan.to_json() if self.run is None else self.run.to_json()
        if self.explanation is not None:
            value["explanation"] = self.explanation.to_json()
        return value

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all, in the format of the suffix: .html, .json or .txt.

        Raises:
            SpecError: another suffix.
        """
        self._save(path, "report", txt=lambda: self.text(SAVED_WIDTH, verbose=True) + "\n")

    def save_trace(self, path: str | Path) -> None:
        """Write the calls of a few iterations as trace events, for ui.perfetto.dev.

        Raises:
            SpecError: there is no run.
        """
        if self.run is None:
            raise SpecError(
                f"report {path}: there is no run, so there are no measurements; Plan.trace writes "
                "the schedule of a plan"
            )
        platform = self.system.platform if self.system is not None else None
        text = json.dumps(run_trace(self.run, platform), separators=(",", ":"))
        write_atomically(path, text.encode())


def page_of(made: Plan | Run, written: str = "") -> Page:
    """Return the page of a plan or of a run. written: as of `Report.page`."""
    plan, run = (made, None) if isinstance(made, Plan) else (made.plan, made)
    return Report(plan, run, plan.problem.system if plan.problem else None).page(written)


def load_report(folder: str | Path) -> Report:
    """Return the report of a run folder. No code that its `spec.yaml` names is imported.

    The heading names the system if there are a `spec.yaml` and a platform in `run.json`: figures of
    devices are those of the run's machine, not of this one.
    """
    from pearl.spec.reading import load_static_on

    run = load_run(folder)
    spec = run_folder.find(Path(run.out or "."), "spec.yaml")
    if run.platform is None or spec is None:
        return Report(run.plan, run)
    return Report(run.plan, run, load_static_on(run.platform, spec))
