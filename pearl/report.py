"""`Report`: what a plan decided and, with a run, what came of it. Terminal text, HTML, JSON.

The content is in `pearl.report_tables`, the page in `pearl.report_html`.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl import report_tables as tables
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.plans import Plan
from pearl.runs import Row, Run, load_metrics, load_run

if TYPE_CHECKING:
    from rich.console import Console

    from pearl.explanation import Explanation
    from pearl.system import System

SUFFIXES = (".html", ".json", ".txt")
SAVED_WIDTH = 120
BAR = 20
GAP = 2
FOLDED = 24


@dataclass(frozen=True)
class Report:
    """A plan, and where there is one the run that followed it.

    system: the spec behind the plan, for the heading. metrics: rows of `metrics.csv` for the
    learning curve; None reads them from the run's folder, where it has one. every_edge: list all
    edges and not only those with slack or a link. explanation: of the plan, for its section.
    """

    plan: Plan
    run: Run | None = None
    system: System | None = None
    metrics: tuple[Row, ...] | None = None
    every_edge: bool = False
    explanation: Explanation | None = None

    def __str__(self) -> str:
        return self.text(_terminal_width())

    def text(self, width: int) -> str:
        """The report as plain text in lines of at most `width` characters (at least 60)."""
        from rich.text import Text

        console, out = _plain_console(max(width, 60))
        console.print(Text(self.title()))
        if self.run is not None and self.run.simulated:
            console.print(Text(tables.SIMULATED))
        _print_facts(console, tables.plan_facts(self.plan))
        for table in self.plan_tables():
            _print_table(console, table)
            if table.title == "Lanes":
                console.print(Text(tables.bound_sentence(self.plan)))
        if self.explanation is not None:
            console.print()
            _print_explanation(console, self.explanation)
        if self.run is not None:
            for table in tables.comparison(self.run):
                _print_table(console, table)
            console.print()
            console.print(Text("Run"))
            _print_facts(console, tables.run_facts(self.run))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def plan_tables(self) -> tuple[tables.Table, ...]:
        """The tables about the plan, in the order of the report."""
        edges = tables.edges(self.plan, every=self.every_edge)
        return (
            tables.assignment(self.plan),
            tables.lanes(self.plan),
            *((edges,) if edges else ()),
        )

    def title(self) -> str:
        """What this is about: the system's name, algorithm and environment, and the platform."""
        what = "run" if self.run is not None else "plan"
        if self.system is None:
            return f"PEARL {what}, platform {self.plan.host}"
        s = self.system
        on = f"{s.algorithm.name} on {s.env.id}, platform {self.plan.host}"
        return f"PEARL {what} {s.name}: {on}"

    def learning(self) -> tuple[Row, ...]:
        """The rows of the learning curve; none without a run folder."""
        if self.metrics is not None:
            return self.metrics
        if self.run is None or self.run.out is None:
            return ()
        return load_metrics(Path(self.run.out) / "metrics.csv")

    def to_json(self) -> dict[str, Any]:
        """The run's object, which holds the plan; the plan's where there is no run. An explanation
        stands under `explanation`."""
        found = self.plan.to_json() if self.run is None else self.run.to_json()
        if self.explanation is not None:
            found["explanation"] = self.explanation.to_json()
        return found

    def save(self, path: str | Path) -> None:
        """Write the report, whole or not at all, in the format of the suffix: .html, .json or .txt.

        Any other suffix is a SpecError.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".html":
            from pearl.report_html import page

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
    """The report of a run folder; the heading names the system where `spec.yaml` can be read."""
    from pearl.spec import load

    run = load_run(folder)
    spec = Path(run.out or ".") / "spec.yaml"
    return Report(run.plan, run, load(spec) if spec.exists() else None)


def explanation_text(explanation: Explanation) -> str:
    """An explanation as plain text for this terminal."""
    console, out = _plain_console(_terminal_width())
    _print_explanation(console, explanation)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _plain_console(width: int) -> tuple[Console, io.StringIO]:
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    return console, out


def _print_explanation(console: Console, explanation: Explanation) -> None:
    from rich.text import Text

    from pearl.explanation.sections import TITLE, section

    found = section(explanation)
    console.print(Text(TITLE))
    for label, text in found.sentences:
        console.print(Text(f"{label}{'' if label.endswith('?') else ':'} {text}"))
    for table in found.tables:
        _print_table(console, table)


def _print_facts(console: Console, facts: tuple[tuple[str, str], ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(Text(f"  {label}"), Text(text))
    console.print(grid)


def table_text(table: tables.Table) -> str:
    """One table as plain text for this terminal."""
    from rich.console import Console

    out = io.StringIO()
    _print_table(Console(file=out, width=_terminal_width(), color_system=None), table)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def _terminal_width() -> int:
    return max(shutil.get_terminal_size((100, 24)).columns, 60)


def _print_table(console: Console, table: tables.Table) -> None:
    """Columns that do not fit beside the others follow below, each line headed as before."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widths = [
        min(max(map(len, (column.name, *cells))), FOLDED if column.folds else console.width)
        for column, *cells in zip(table.columns, *table.rows, strict=True)
    ]
    console.print()
    console.print(Text(table.title))
    groups = _fitting(widths, console.width - (BAR + GAP if table.bars else 0))
    for shown in groups:
        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for i in shown:
            column = table.columns[i]
            drawn.add_column(Text(column.name), justify=column.align, overflow="fold")
        bars = table.bars if shown[-1] == len(table.columns) - 1 else ()
        if bars:
            drawn.add_column("", no_wrap=True)
        for number, row in enumerate(table.rows):
            cells = [Text(row[i]) for i in shown]
            if bars:
                full = round(BAR * min(max(bars[number], 0.0), 1.0))
                cells.append(Text("█" * full + "░" * (BAR - full)))
            drawn.add_row(*cells)
        if shown is not groups[0]:
            console.print()
        console.print(drawn)
    for note in table.notes:
        console.print(Text(note))


def _fitting(widths: Sequence[int], room: int) -> list[list[int]]:
    """Column numbers in groups that fit into `room` characters; the first heads every group."""
    groups, used = [[0]], widths[0]
    for i in range(1, len(widths)):
        if used + GAP + widths[i] > room and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(i)
        used += GAP + widths[i]
    return groups
