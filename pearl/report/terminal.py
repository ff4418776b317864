"""Pages and blocks as plain text for a terminal."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pearl.formatting import printable
from pearl.report.document import (
    Block,
    Cards,
    Command,
    Drawing,
    Facts,
    KeyFigure,
    Page,
    Sentences,
    Table,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import Console

BAR = 20
"""Characters of a full bar."""
GAP = 2
"""Spaces between two columns of a table."""
FOLDED = 24
"""Width of a folding column when a table is split to fit the terminal."""
NARROWEST = 60
"""Fewest characters of a line."""


def terminal_width() -> int:
    """Return the characters of a line of this terminal, at least NARROWEST."""
    return max(shutil.get_terminal_size((100, 24)).columns, NARROWEST)


def page_text(page: Page, width: int | None = None, *, details: bool = False) -> str:
    """Return a page as plain text.

    The summary of a detail replaces the heading of its first block.

    width: characters of a line, at least NARROWEST; None for those of this terminal.
    details: print the details too, above the page.
    """
    console, out = _console(terminal_width() if width is None else max(width, NARROWEST))
    for detail in page.details if details else ():
        _print(console, detail.summary)
        for number, block in enumerate(detail.blocks):
            _show(console, block, heading=number > 0)
        console.print()
    _print(console, page.title + (f": {page.subtitle}" if page.subtitle else ""))
    if page.warning:
        _print(console, page.warning)
    if page.lead:
        rows = tuple((s.label.lower(), s.text.replace("`", "")) for s in page.lead)
        _show_facts(console, Facts("", rows))
    if page.figures:
        console.print()
        _print(console, "; ".join(map(_figure_text, page.figures)))
    for block in page.blocks:
        if not (isinstance(block, Facts | Sentences | Table) and block.title):
            console.print()
        _show(console, block)
    return _text(out)


def _figure_text(f: KeyFigure) -> str:
    note = f" ({f.note})" if f.note else ""
    return f"{f.label} {f.value}{f' {f.unit}' if f.unit else ''}{note}"


def block_text(*blocks: Block) -> str:
    """Return blocks as plain text for this terminal."""
    console, out = _console(terminal_width())
    for block in blocks:
        _show(console, block)
    return _text(out).strip("\n")


def _console(width: int) -> tuple[Console, io.StringIO]:
    """Return a console of `width` characters per line without colours, and its output."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    return console, out


def _text(out: io.StringIO) -> str:
    """Return the output without spaces at the ends of lines."""
    return "\n".join(printable(line).rstrip() for line in out.getvalue().splitlines())


def _print(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text))  # a Text, so that brackets in a name are not markup


def _show(console: Console, block: Block, *, heading: bool = True) -> None:
    if isinstance(block, Drawing):
        return
    if isinstance(block, Command):
        _print(console, f"{block.title} {block.text}".strip())
        return
    if isinstance(block, Cards):
        for card in block.cards:
            _print(console, f"{card.question} {card.verdict}. {card.reason}".strip())
        return
    if heading and block.title:
        console.print()
        _print(console, block.title)
    if isinstance(block, Table):
        _show_table(console, block)
    elif isinstance(block, Facts):
        _show_facts(console, block)
    else:
        for label, text in block.rows:
            colon = "" if label.endswith("?") else ":"
            _print(console, f"{label}{colon} {text}" if label else text)


def _show_facts(console: Console, facts: Facts) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts.rows:
        grid.add_row(Text(f"  {label}"), Text(text))
    console.print(grid)


def _show_table(console: Console, table: Table) -> None:
    """Print a table; columns that do not fit follow below, after the first column again."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    widths = [
        min(max(map(len, (column.name, *cells))), FOLDED if column.folds else console.width)
        for column, *cells in zip(table.columns, *table.rows, strict=True)
    ]
    groups = _groups(widths, console.width - (BAR + GAP if table.bars else 0))
    for group in groups:
        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for i in group:
            column = table.columns[i]
            grid.add_column(Text(column.name), justify=column.align, overflow="fold")
        bars = table.bars if group[-1] == len(table.columns) - 1 else ()
        if bars:
            grid.add_column("", no_wrap=True)
        for number, row in enumerate(table.rows):
            cells = [Text(row[i]) for i in group]
            if bars:
                full = round(BAR * min(max(bars[number], 0.0), 1.0))
                cells.append(Text("█" * full + "░" * (BAR - full)))
            grid.add_row(*cells)
        if group is not groups[0]:
            console.print()
        console.print(grid)
    for note in table.notes:
        _print(console, note)


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return column numbers in groups that fit into `room` characters; the first is in each
    group."""
    groups, used = [[0]], widths[0]
    for i in range(1, len(widths)):
        if used + GAP + widths[i] > room and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(i)
        used += GAP + widths[i]
    return groups
