"""Bars: loads of devices, gains of changes, near-optimal plans, shares of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pearl.formatting import count, listed, percent, si
from pearl.report.canvas import LETTER, Canvas, shorten, text_width, two_lines
from pearl.report.document import Drawing

ROW = 24.0
BAR = 28.0
"""Heights of a row of a chart and of a stacked bar."""


@dataclass(frozen=True)
class BarRow:
    """A row of a bar chart.

    name: label of the row. value, text: length of the bar and its label.
    hollow: whether the bar is not filled. style: classes of the bar.
    """

    name: str
    value: float
    text: str
    hollow: bool = False
    style: str = "fill ink"
    below: str = ""


def bar_chart(bars: Sequence[BarRow], sentence: str, largest: float = 0.0) -> Drawing | None:
    """Draw horizontal bars from zero on one scale; None without bars. Negative values go left."""
    if not bars:
        return None
    return Drawing("", sentence, lambda width: _bars(width, bars, largest))


def _bars(width: float, bars: Sequence[BarRow], largest: float) -> Canvas:
    c = Canvas(width)
    longest = max(max(len(b.name), len(b.below)) for b in bars)
    left = min(longest * LETTER + 12, width * (0.44 if c.narrow else 0.42))
    right = max(len(b.text) for b in bars) * LETTER + 10
    most = (
        largest or max((abs(b.value) for b in bars if math.isfinite(b.value)), default=1.0) or 1.0
    )
    least = min((b.value for b in bars if math.isfinite(b.value)), default=0.0)
    zero = left + (0.0 if least >= 0 else (width - left - right) * 0.5)
    scale = (width - right - zero) / most
    y = 4.0
    letters = max(int(left / LETTER) - 1, 6)
    for b in bars:
        lines = two_lines(b.name, letters)
        for number, line in enumerate(lines):
            c.text(0, y + 14 + 14 * number, line, style="ink")
        if b.below:
            c.text(0, y + 14 + 14 * len(lines), shorten(b.below, letters), style="muted small")
        wide = min(abs(b.value), most) * scale if math.isfinite(b.value) else 0.0
        x = zero - wide if b.value < 0 else zero
        box = "box" if b.hollow else b.style
        c.rect(x, y + 4, max(wide, 1.5), 12, box, hint=f"{b.name}: {b.text}")
        c.text(width, y + 14, b.text, "end", "ink")
        y += ROW + 12 * (len(lines) - 1 + bool(b.below))
    c.line(zero, 2, zero, y - 2, "axis")
    c.height = y + 2
    return c


def almost_as_good(
    rows: Sequence[tuple[str, float, float]], unit: str, within: float
) -> Drawing | None:
    """Draw plans as dots left of this one.

    rows: (difference to this plan, value, loss as a share of this plan).
    """
    if len(rows) < 2:
        return None
    told = [f"{name} {count(value)} {unit}" for name, value, _ in rows]

    def draw(width: float) -> Canvas:
        c = Canvas(width)
        left = min(max(len(n) for n, _, _ in rows) * LETTER + 12, width * 0.45)
        left += 0 if c.narrow else 70
        right = 64.0
        span = width - left - right
        low = min(-within, *(-loss for _, _, loss in rows))
        high = max(0.0, *(-loss for _, _, loss in rows))

        def at(share: float) -> float:
            return left + span * (share - low) / (high - low or 1.0)

        letters = int((left - (0 if c.narrow else 70)) / LETTER) - 1
        names = [two_lines(name, letters) for name, _, _ in rows]
        bottom = 8 + ROW * len(rows) + 12 * sum(len(lines) - 1 for lines in names)
        for k in range(6):
            share = low * k / 5
            c.line(at(share), 4, at(share), bottom, "axis" if k == 0 else "grid")
            if not c.narrow or k % 2 == 0:
                label = "0" if k == 0 else f"−{abs(100 * share):.3g} %"
                c.text(at(share), bottom + 16, label, "middle")
        y = 4.0
        for number, (_, value, loss) in enumerate(rows):
            style = "ink strong" if number == 0 else "ink"
            for line, text in enumerate(names[number]):
                c.text(0, y + 14 + 14 * line, text, style=style)
            if not c.narrow:
                c.text(left - 14, y + 14, count(value), "end", style)
            x = at(-loss)
            c.line(x, y + 10, at(0), y + 10, "ink line")
            c.dot(x, y + 10, 3.6, "fill ink" if number == 0 else "hollow")
            text = "this plan" if number == 0 else "equal" if not round(1000 * loss) else (
                f"{'−' if loss > 0 else '+'}{abs(100 * loss):.1f} %"
            )  # fmt: skip
            c.text(width, y + 14, "best" if text == "this plan" else text, "end", style)
            y += ROW + 12 * (len(names[number]) - 1)
        c.height = bottom + 24
        return c

    return Drawing("", f"Plans that come close, best first: {listed(told)}.", draw)


@dataclass(frozen=True)
class Part:
    """A share of a stacked bar: name, seconds, style (`hatch` for waiting)."""

    name: str
    seconds: float
    style: str


def stacked_bar(parts: Sequence[Part], *, in_seconds: bool = True) -> Drawing | None:
    """Draw the shares of one whole as one bar with a legend; None if all are zero.

    in_seconds: the whole is a duration, so the legend also has seconds.
    """
    parts = [p for p in parts if p.seconds > 0]
    total = sum(p.seconds for p in parts)
    if not parts or not 0 < total < math.inf:
        return None

    def draw(width: float) -> Canvas:
        c, x = Canvas(width), 0.0
        for p in parts:
            wide = width * (p.seconds / total)
            share = f"{p.name}: {si(p.seconds, 's')}, {percent(p.seconds / total)}"
            _segment(c, x, 0.0, wide, p, share)
            x += wide
        c.height = _legend(c, 44.0, [(p.name, p.style, p.seconds) for p in parts], in_seconds)
        return c

    told = [f"{p.name} {percent(p.seconds / total)}" for p in parts]
    whole = f"Of {si(total, 's')}: " if in_seconds else ""
    return Drawing("", f"{whole}{listed(told)}.", draw)


def _segment(c: Canvas, x: float, y: float, wide: float, p: Part, hint: str) -> None:
    """Draw one share of a bar, with its name if it fits."""
    if p.style == "hatch":
        c.hatch(x, y, wide, BAR)
        c.rect(x, y, wide, BAR, "outline", hint=hint)
    else:
        c.rect(x, y, wide, BAR, f"call {p.style}", hint=hint)
    if text_width(p.name) + 12 < wide:
        on = "on" if "t10" in p.style else "halo ink" if p.style == "hatch" else "ink"
        c.text(x + 8, y + 18, p.name, style=on)


def _legend(
    c: Canvas, top: float, entries: Sequence[tuple[str, str, float]], in_seconds: bool
) -> float:
    """Draw names and styles with their seconds and shares; return the lower edge."""
    total = sum(seconds for _, _, seconds in entries)
    columns = 2 if c.narrow else 4
    step = c.width / columns
    for number, (name, style, seconds) in enumerate(entries):
        left, y = (number % columns) * step, top + (number // columns) * 38
        if style == "hatch":
            c.hatch(left, y, 11, 11)
        else:
            c.rect(left, y, 11, 11, f"call {style}")
        c.text(left + 18, y + 10, shorten(name, int(step / LETTER) - 3), style="ink")
        took = f"{si(seconds, 's')} · " if in_seconds else ""
        c.text(left + 18, y + 25, f"{took}{_share(seconds / total)}")
    return top + 38 * math.ceil(len(entries) / columns)


def stacked_bars(rows: Sequence[tuple[str, Sequence[Part]]]) -> Drawing | None:
    """Draw several wholes on one scale, one bar each, with one legend; None if all are zero."""
    rows = [(name, [p for p in parts if p.seconds > 0]) for name, parts in rows]
    most = max((sum(p.seconds for p in parts) for _, parts in rows), default=0.0)
    if not 0 < most < math.inf:
        return None

    def draw(width: float) -> Canvas:
        c, y = Canvas(width), 0.0
        left = min(max(len(name) for name, _ in rows) * LETTER + 12, width * 0.3)
        for name, parts in rows:
            c.text(0, y + 18, shorten(name, int(left / LETTER) - 1), style="ink")
            x = left
            for p in parts:
                wide = (width - left) * (p.seconds / most)
                _segment(c, x, y, wide, p, f"{name}, {p.name}: {si(p.seconds, 's')}")
                x += wide
            y += BAR + 10
        named: dict[tuple[str, str], float] = {}
        for _, parts in rows:
            for p in parts:
                named[p.name, p.style] = named.get((p.name, p.style), 0.0) + p.seconds
        entries = [(name, style, seconds) for (name, style), seconds in named.items()]
        c.height = _legend(c, y + 6, entries, True)
        return c

    told = []
    for name, parts in rows:
        whole = sum(p.seconds for p in parts) or 1.0
        told.append(f"{name} {listed([f'{p.name} {percent(p.seconds / whole)}' for p in parts])}")
    return Drawing("", f"Where the time went: {'; '.join(told)}.", draw)


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
