"""Tables and facts as plain text for a terminal."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

BAR = 20
GAP = 2
FOLDED = 24


@dataclass(frozen=True)
class Column:
    """The heading of a column.

    align: figures stand right, words left.
    folds: long text that may take several lines.
    """

    name: str
    align: Literal["left", "right"] = "left"
    folds: bool = False


@dataclass(frozen=True)
class Table:
    """A table of ready text.

    notes: sentences under it.
    bars: a share from 0 to 1 for each row, drawn as a bar behind the last column; none if empty.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    bars: tuple[float, ...] = ()

    def marked(self, simulated: Collection[str]) -> Table:
        """The table with its title, rows and notes as `marked` writes them; a row is one text."""
        rows = []
        for row in self.rows:
            cells = list(row)
            if not any(WORD in cell for cell in cells):
                named = next((i for i, c in enumerate(cells) if marked(c, simulated) != c), None)
                if named is not None:
                    cells[named] = marked(cells[named], simulated)
            rows.append(tuple(cells))
        notes = tuple(marked(note, simulated) for note in self.notes)
        return replace(self, title=marked(self.title, simulated), rows=tuple(rows), notes=notes)


WORD = "simulated"


def marked(text: str, simulated: Collection[str]) -> str:
    """A text in which each sentence about a simulated device says so: `fpga (simulated)`.

    simulated: names of devices. The first mention in a sentence counts, be it of the device, of one
    of its lanes (`fpga.0`) or links (`cpu-fpga`); a sentence that says the word stays as it is.
    Keys and values of a command (`limits.pin.update=fpga`) are no mention.
    """
    if not simulated:
        return text
    names = "|".join(re.escape(name) for name in sorted(simulated, key=len, reverse=True))
    mention = re.compile(
        rf"(?<![\w.=/-])(?:[\w.]+-)?(?:{names})(?:-[\w.]*\w)?(?:[./]\d+)?(?![\w=]|[-./]\w)(?:'(?!\w))?"
    )
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    return " ".join(
        s if WORD in s else mention.sub(lambda found: f"{found[0]} ({WORD})", s, count=1)
        for s in sentences
    )


def plain_console(width: int) -> tuple[Console, io.StringIO]:
    """A console of `width` characters a line without colours, and its output."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    return console, out


def plain(out: io.StringIO) -> str:
    """The output without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def print_facts(console: Console, facts: tuple[tuple[str, str], ...]) -> None:
    """Print labels and texts in two columns."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(Text(f"  {label}"), Text(text))
    console.print(grid)


def table_text(table: Table) -> str:
    """One table as plain text for this terminal."""
    console, out = plain_console(terminal_width())
    print_table(console, table)
    return plain(out).strip("\n")


def terminal_width() -> int:
    """Characters a line of this terminal, at least 60."""
    return max(shutil.get_terminal_size((100, 24)).columns, 60)


def print_table(console: Console, table: Table) -> None:
    """Print a table. Columns that do not fit follow below, headed by the first column again."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    widths = [
        min(max(map(len, (column.name, *cells))), FOLDED if column.folds else console.width)
        for column, *cells in zip(table.columns, *table.rows, strict=True)
    ]
    console.print()
    console.print(Text(table.title))
    groups = _fitting(widths, console.width - (BAR + GAP if table.bars else 0))
    for shown in groups:
        drawn = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
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
