"""`Report`: the decisions of a plan and, with a run, their results. Terminal text, HTML, JSON.

The content is in `pearl.report.tables`; `pearl.text_tables` prints it, and `pearl.report.html`
makes a page of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formatting import listed
from pearl.planning.plans import Plan
from pearl.planning.runs import Row, Run, load_metrics, load_run
from pearl.report import tables as tables
from pearl.text_tables import (
    WORD,
    Table,
    marked,
    plain,
    plain_console,
    print_facts,
    print_table,
    terminal_width,
)
from pearl_devices.validation import mistyped

if TYPE_CHECKING:
    from pearl.explanation import Explanation
    from pearl.spec.system import StaticSpec

SUFFIXES = (".html", ".json", ".txt")
SAVED_WIDTH = 120


@dataclass(frozen=True)
class Report:
    """A plan, and the run that followed it where there is one.

    system: the spec behind the plan, for the heading.
    metrics: rows of `metrics.csv` for the learning curve; None reads them from the run's folder,
        where it has one.
    every_edge: list all edges, and not only those with slack or a link.
    explanation: of the plan, for its section.
    """

    plan: Plan
    run: Run | None = None
    system: StaticSpec | None = None
    metrics: tuple[Row, ...] | None = None
    every_edge: bool = False
    explanation: Explanation | None = None

    def __post_init__(self) -> None:
        problems = mistyped("report: plan", self.plan, Plan, "a Plan")
        problems += mistyped("report: run", self.run, Run | None, "a Run, as `train` returns it,")
        if problems:
            raise SpecError(*problems)

    def __str__(self) -> str:
        return self.text(terminal_width())

    def text(self, width: int) -> str:
        """The report as plain text in lines of at most `width` characters (at least 60)."""
        from rich.text import Text

        console, out = plain_console(max(width, 60))
        console.print(Text(self.title()))
        if self.run is not None and self.run.simulated:
            console.print(Text(tables.SIMULATED))
        print_facts(console, self.plan_facts())
        for table in self.plan_tables():
            print_table(console, table)
            if table.title == "Lanes":
                console.print(Text(self.bound_sentence()))
        if self.explanation is not None:
            from pearl.explanation.sections import show

            console.print()
            show(console, self.explanation)
        if self.run is not None:
            for table in self.comparison():
                print_table(console, table)
            console.print()
            console.print(Text("Run"))
            print_facts(console, tables.run_facts(self.run))
        return plain(out)

    def plan_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts at the head; sentences and tables below say `simulated` of such devices too."""
        simulated = self.plan.simulated
        facts = [(name, marked(text, simulated)) for name, text in tables.plan_facts(self.plan)]
        used = [d for d in simulated if any(t.device == d for t in self.plan.tasks)]
        if used:
            facts.insert(1, (WORD, f"{listed(used)}: times of a model; no such hardware is driven"))
        return tuple(facts)

    def bound_sentence(self) -> str:
        """The bottleneck of the period."""
        return marked(tables.bound_sentence(self.plan), self.plan.simulated)

    def comparison(self) -> tuple[Table, ...]:
        """Prediction beside measurement; none without a run."""
        found = tables.comparison(self.run) if self.run is not None else ()
        return tuple(table.marked(self.plan.simulated) for table in found)

    def plan_tables(self) -> tuple[Table, ...]:
        """The tables about the plan, in the order of the report."""
        edges = tables.edges(self.plan, every=self.every_edge)
        found = (
            tables.assignment(self.plan),
            tables.lanes(self.plan),
            *((edges,) if edges else ()),
        )
        return tuple(table.marked(self.plan.simulated) for table in found)

    def title(self) -> str:
        """The heading: the name of the system, algorithm and environment, and the platform."""
        what = "run" if self.run is not None else "plan"
        if self.system is None:
            return f"PEARL {what}, platform {self.plan.host}"
        s = self.system
        on = f"{s.algorithm.name} on {s.algorithm.env}, platform {self.plan.host}"
        return f"PEARL {what} {s.name}: {on}"

    def learning(self) -> tuple[Row, ...]:
        """The rows of the learning curve; none without a run folder."""
        if self.metrics is not None:
            return self.metrics
        if self.run is None or self.run.out is None:
            return ()
        return load_metrics(Path(self.run.out) / "metrics.csv")

    def to_json(self) -> dict[str, Any]:
        """The run's object, which holds the plan; without a run the plan's. With key `explanation`,
        if
        any.
        """
        found = self.plan.to_json() if self.run is None else self.run.to_json()
        if self.explanation is not None:
            found["explanation"] = self.explanation.to_json()
        return found

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all, in the format of the suffix: .html, .json or .txt.

        Raises:
            SpecError: another suffix.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".html":
            from pearl.report.html import page

            text = page(self)
        elif suffix == ".json":
            text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        elif suffix == ".txt":
            text = self.text(SAVED_WIDTH) + "\n"
        else:
            raise SpecError(
                f"report {path}: suffix {suffix or 'none'!r}; the suffix chooses the format, "
                f"allowed are {', '.join(SUFFIXES)}"
            )
        write_atomically(path, text.encode())


def load_report(folder: str | Path) -> Report:
    """The report of a run folder. Nothing that its `spec.yaml` names is imported.

    The heading names the system where there is a `spec.yaml`.
    """
    from pearl.spec.reading import load_static_on
    from pearl_devices.discover import host

    run = load_run(folder)
    spec = Path(run.out or ".") / "spec.yaml"
    return Report(run.plan, run, load_static_on(host(), spec) if spec.exists() else None)
