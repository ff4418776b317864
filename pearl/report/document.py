"""The content of a report before it is drawn: a page of facts, sentences, tables and drawings.

`pearl.report.terminal` and `pearl.report.html` show the same page, so that they cannot disagree.
Every block says `simulated` of simulated devices when its builder calls `marked`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from pearl.formatting import WORD, marked

Rows = tuple[tuple[str, str], ...]
"""Pairs of a label and its text."""


@dataclass(frozen=True)
class Facts:
    """Labels and texts in two columns.

    title: the heading; empty for none.
    rows: a label and its text each.
    """

    title: str
    rows: Rows

    def marked(self, simulated: Collection[str]) -> Facts:
        """Return the facts with each text as `formatting.marked` writes it."""
        return replace(self, rows=_marked_rows(self.rows, simulated))


@dataclass(frozen=True)
class Sentences:
    """Sentences below a heading.

    title: the heading.
    rows: a label, which may be a question or empty, and its sentences each.
    """

    title: str
    rows: Rows

    def marked(self, simulated: Collection[str]) -> Sentences:
        """Return the sentences as `formatting.marked` writes them, labels included."""
        return replace(self, rows=_marked_rows(self.rows, simulated))


def _marked_rows(rows: Rows, simulated: Collection[str]) -> Rows:
    return tuple((marked(label, simulated), marked(text, simulated)) for label, text in rows)


@dataclass(frozen=True)
class Column:
    """The heading of a column.

    align: right for numbers, left for words.
    folds: long text that may take several lines.
    """

    name: str
    align: Literal["left", "right"] = "left"
    folds: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text.

    columns: one heading per column.
    rows: one text per column each.
    notes: sentences below the table.
    bars: a share from 0 to 1 per row, drawn as a bar behind the last column; empty for no bars.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    bars: tuple[float, ...] = ()

    def marked(self, simulated: Collection[str]) -> Table:
        """Return the table with title, rows and notes as `formatting.marked` writes them.

        A row counts as one sentence: its first mention of a simulated device is marked.
        """
        rows = []
        for row in self.rows:
            cells = list(row)
            if not any(WORD in cell for cell in cells):
                first = next((i for i, c in enumerate(cells) if marked(c, simulated) != c), None)
                if first is not None:
                    cells[first] = marked(cells[first], simulated)
            rows.append(tuple(cells))
        notes = tuple(marked(note, simulated) for note in self.notes)
        return replace(self, title=marked(self.title, simulated), rows=tuple(rows), notes=notes)


@dataclass(frozen=True)
class Box:
    """A rectangle of a drawing.

    x, y, width, height: of the rectangle, in user units of the drawing.
    colour: number of a colour of the style sheet, 0 to 9.
    label: text inside the rectangle; empty if there is no room.
    hint: text that appears on hovering.
    """

    x: float
    y: float
    width: float
    height: float
    colour: int
    label: str
    hint: str


@dataclass(frozen=True)
class Label:
    """A word of a drawing.

    x, y: of the anchor, in user units of the drawing.
    anchor: as in SVG: start, middle or end.
    """

    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True)
class Drawing:
    """A drawing, WIDTH × height user units. A terminal leaves drawings out.

    height: in user units.
    lines: of the grid, (x1, y1, x2, y2).
    paths: lines, (colour, SVG points).
    legend: (colour, name).
    areas: (colour, SVG points), filled with a translucent colour.
    """

    title: str
    caption: str
    height: float
    boxes: tuple[Box, ...] = ()
    labels: tuple[Label, ...] = ()
    lines: tuple[tuple[float, float, float, float], ...] = ()
    paths: tuple[tuple[int, str], ...] = ()
    legend: tuple[tuple[int, str], ...] = ()
    areas: tuple[tuple[int, str], ...] = ()

    def marked(self, simulated: Collection[str]) -> Drawing:
        """Return the drawing with labels, hints and legend as `formatting.marked` writes them."""
        boxes = (
            replace(b, label=marked(b.label, simulated), hint=marked(b.hint, simulated))
            for b in self.boxes
        )
        labels = (replace(t, text=marked(t.text, simulated)) for t in self.labels)
        return replace(
            self,
            title=marked(self.title, simulated),
            caption=marked(self.caption, simulated),
            boxes=tuple(boxes),
            labels=tuple(labels),
            legend=tuple((colour, marked(name, simulated)) for colour, name in self.legend),
        )


Block = Facts | Sentences | Table | Drawing


@dataclass(frozen=True)
class Page:
    """A report.

    title: the first line.
    blocks: from top to bottom.
    warning: a sentence directly below the title; empty for none.
    footer: sentences at the end of an HTML page.
    """

    title: str
    blocks: tuple[Block, ...]
    warning: str = ""
    footer: str = ""
