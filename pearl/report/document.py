"""The content of a report before it is drawn: a page of sentences, figures, tables and drawings.

`pearl.report.terminal` and `pearl.report.html` show the same page, so that they cannot disagree.
Every block marks simulated devices if its builder calls `marked`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from pearl.formatting import WORD, marked
from pearl.report.canvas import NARROW, WIDE, Canvas

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
    rows: a label, which may be a question or empty, and its sentences.
    inline: print the rows, which are short, in one paragraph.
    """

    title: str
    rows: Rows
    inline: bool = False

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
class Drawing:
    """A figure, drawn once for each width of a page. A terminal omits drawings.

    title: the heading; empty if the heading of the section is enough.
    sentence: what the figure shows, for readers who do not see it.
    draw: makes the drawing for a width in user units.
    caption: words below the drawing.
    """

    title: str
    sentence: str
    draw: Callable[[float], Canvas]
    caption: str = ""

    @property
    def canvases(self) -> tuple[Canvas, Canvas]:
        """The drawings for a screen and for a phone."""
        return self.draw(WIDE), self.draw(NARROW)


@dataclass(frozen=True)
class Command:
    """A command line to copy. title: words before it."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Card:
    """One question with its verdict.

    question: in words. verdict: the answer in a few words.
    glyph: the kind of verdict: yes, no, if, or same (it does not matter).
    reason: sentences. command: shows more; empty for none.
    draw: a small figure in a width in user units, with its sentence; None for none.
    """

    question: str
    verdict: str
    glyph: Literal["yes", "no", "if", "same"]
    reason: str
    command: str = ""
    draw: Callable[[float], Canvas] | None = None
    sentence: str = ""


@dataclass(frozen=True)
class Cards:
    """Cards in two columns."""

    cards: tuple[Card, ...]
    title: str = ""


Block = Facts | Sentences | Table | Drawing | Command | Cards


@dataclass(frozen=True)
class LeadSentence:
    """One of the sentences at the top of a page.

    label: the question that the sentence answers, such as `What limits it`.
    answer: the first words, in bold. reason: the rest of the sentence.
    """

    label: str
    answer: str
    reason: str

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.answer}{self.reason}"

    def marked(self, simulated: Collection[str]) -> LeadSentence:
        """Return the sentence as `formatting.marked` writes it."""
        if WORD in self.text:
            return self
        answer = marked(self.answer, simulated)
        reason = self.reason if answer != self.answer else marked(self.reason, simulated)
        return replace(self, answer=answer, reason=reason)


@dataclass(frozen=True)
class KeyFigure:
    """A number at the top of a page.

    label: its subject. value, unit: the number. note: a band, a source, or how it was counted.
    band: low end, estimate and high end of a whisker on a scale from zero; None for none.
    """

    label: str
    value: str
    unit: str = ""
    note: str = ""
    band: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Section:
    """A heading with one finding, a reading guide, and blocks.

    title: the heading. finding: one sentence, its first words in bold up to a `:` or `;` or `,`.
    guide: how to read the figure; empty if no guide is needed.
    brief: also part of the short form in a notebook.
    """

    title: str
    finding: str
    guide: str
    blocks: tuple[Block, ...]
    brief: bool = False

    def marked(self, simulated: Collection[str]) -> Section:
        """Return the section with its words as `formatting.marked` writes them."""
        blocks = tuple(
            b.marked(simulated) if isinstance(b, Facts | Sentences | Table) else b
            for b in self.blocks
        )
        finding, guide = marked(self.finding, simulated), marked(self.guide, simulated)
        return replace(self, finding=finding, guide=guide, blocks=blocks)


@dataclass(frozen=True)
class Detail:
    """Blocks behind a summary, closed at first. note: more words of the summary, in grey."""

    summary: str
    blocks: tuple[Block, ...]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    title: the first line.
    subtitle: the subject in one line.
    warning: a sentence directly below the title; empty for none.
    lead: what you get, what limits it, what would help most.
    figures: key figures.
    sections: from top to bottom.
    blocks: shown by a terminal below lead and key figures; an HTML page has sections instead.
    details: all numbers.
    footer: sources of the numbers.
    """

    title: str
    blocks: tuple[Block, ...] = ()
    warning: str = ""
    footer: str = ""
    subtitle: str = ""
    lead: tuple[LeadSentence, ...] = ()
    figures: tuple[KeyFigure, ...] = ()
    sections: tuple[Section, ...] = ()
    details: tuple[Detail, ...] = ()
