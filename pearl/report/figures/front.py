"""Figures of the front of throughput and power, and of numbers tried around the present one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pearl.formatting import count, listed, si
from pearl.report.canvas import LETTER, Box, Canvas, overlap, passes, polyline, text_width, ticks
from pearl.report.document import Drawing

LABELS = tuple((dx, anchor, dy) for dy in (-18, 14, -30, -46)
               for dx, anchor in ((10, "start"), (-10, "end")))  # fmt: skip
"""Places of a label around its point, the preferred first."""


@dataclass(frozen=True)
class FrontPoint:
    """A plan of a front.

    label: its name if it is one of the labelled points, else empty.
    style: colour of the learner's device. band: of the rate; None for none.
    """

    power_w: float
    rate: float
    style: str
    label: str = ""
    band: tuple[float, float] | None = None


def front_chart(stretches: Sequence[Sequence[FrontPoint]], unit: str) -> Drawing | None:
    """Draw power and rate: a line for each assignment at decreasing speed, labels with bands."""
    points = [p for s in stretches for p in s]
    if not points:
        return None
    named = sorted((p for p in points if p.label), key=lambda p: p.power_w)
    told = [f"{p.label} {si(p.power_w, 'W')} and {count(p.rate)} {unit}" for p in named]
    return Drawing(
        "", f"Power and rate: {listed(told)}.", lambda width: _front(width, stretches, named, unit)
    )


def _front(
    width: float, stretches: Sequence[Sequence[FrontPoint]], named: Sequence[FrontPoint], unit: str
) -> Canvas:
    c = Canvas(width)
    points = [p for s in stretches for p in s]
    most_w = max(p.power_w for p in points) * 1.12 or 1.0
    most = max([p.rate for p in points] + [p.band[1] for p in named if p.band]) * 1.05 or 1.0
    marks = ticks(0, most, 4)
    left = max(len(count(v)) for v in marks) * LETTER + 12
    right, top, bottom = width - 12.0, 30.0, 250.0
    if not c.narrow:
        right -= 120

    def x(watts: float) -> float:
        return left + watts / most_w * (right - left)

    def y(rate: float) -> float:
        return bottom - rate / most * (bottom - top)

    c.text(0, 14, unit)
    for v in marks:
        c.line(left, y(v), right, y(v))
        c.text(left - 8, y(v) + 4, count(v), "end")
    for v in ticks(0, most_w, 3 if c.narrow else 5):
        c.text(x(v), bottom + 18, f"{v:g}", "middle")
    c.text(right, bottom + 34, "W, modelled", "end")
    c.line(left, bottom, right, bottom, "axis")
    for s in stretches:
        if len(s) > 1:
            d = polyline((x(p.power_w), y(p.rate)) for p in s)
            c.path(d, f"line {s[0].style} none")
        else:
            c.dot(x(s[0].power_w), y(s[0].rate), 3, f"fill {s[0].style}")
    for p in named:
        if p.band:
            low, high = y(p.band[0]), y(min(p.band[1], most))
            c.line(x(p.power_w), low, x(p.power_w), high, f"line {p.style}")
            for end in (low, high):
                c.line(x(p.power_w) - 4, end, x(p.power_w) + 4, end, f"line {p.style}")
        c.dot(x(p.power_w), y(p.rate), 4.5, f"fill {p.style}")
    ends = [((x(a.power_w), y(a.rate)), (x(b.power_w), y(b.rate)))
            for s in stretches for a, b in pairwise(s)]  # fmt: skip
    ends += [((x(p.power_w), y(p.band[0])), (x(p.power_w), y(p.band[1])))
             for p in named if p.band]  # fmt: skip
    drawn = [(a + k / 40 * (b - a), m + k / 40 * (n - m))
             for (a, m), (b, n) in ends for k in range(41)]  # fmt: skip
    used: list[Box] = []
    for p in reversed(named):
        per_j = f" · {p.rate / p.power_w:.3g} per J" if p.power_w and not c.narrow else ""
        lines = (p.label, f"{si(p.power_w, 'W')} · {count(p.rate)}/s{per_j}")
        wide = max(text_width(lines[0], strong=True), text_width(lines[1]))
        best = None
        for dx, anchor, dy in LABELS:
            at, level = x(p.power_w) + dx, y(p.rate) + dy
            start = at if anchor == "start" else at - wide
            box = start, level - 11, start + wide, level + 19
            cost = 50.0 * (
                box[0] < left - 8 or box[2] > width or box[1] < 16 or box[3] > bottom - 2
            )
            cost += 20 * sum(overlap(box, u) for u in used) + passes(drawn, box)
            if best is None or cost < best[0]:
                best = cost, at, level, anchor, box
        assert best is not None
        _, at, level, anchor, box = best
        used.append(box)
        c.text(at, level, lines[0], anchor, "halo ink strong")
        c.text(at, level + 15, lines[1], anchor, "halo muted")
    c.height = bottom + 42
    return c


def tried_numbers(values: Sequence[tuple[str, float]], now: str) -> Drawing:
    """Draw numbers that were tried as dots around the present one, with a grey zone of ±5 %.

    values: (number, rate). now: the present number.
    """
    base = next((rate for name, rate in values if name == now), values[0][1])
    shares = [(name, rate / base - 1) for name, rate in values]

    def label(names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else f"{names[0]}–{names[-1]}"

    def label_width(names: Sequence[str]) -> float:
        return text_width(label(names), strong=now in names)

    def draw(width: float) -> Canvas:
        c = Canvas(min(width, 352.0), 52.0)
        most = max(0.1, min(1.0, max(abs(s) for _, s in shares) * 1.15))
        middle, half = c.width / 2, c.width / 2 - 20

        def at(share: float) -> float:
            return middle + max(-most, min(most, share)) / most * half

        c.rect(at(-0.05), 18, at(0.05) - at(-0.05), 16, "zone")
        c.line(4, 26, c.width - 4, 26, "axis")
        for share, text in ((-0.05, "−5 %"), (0.05, "+5 %")):
            c.text(at(share), 48, text, "end" if share < 0 else "start")
        groups = [(at(share), [name]) for name, share in shares]
        place = 1
        while place < len(groups):  # neighbours whose labels would touch have one label
            (x, names), (after, more) = groups[place - 1 : place + 1]
            if abs(after - x) < (label_width(names) + label_width(more)) / 2 + 6:
                keep = after if now in more else x
                groups[place - 1 : place + 1] = [(keep, names + more)]
                place = max(place - 1, 1)
            else:
                place += 1
        for x, names in groups:
            c.text(x, 12, label(names), "middle", "ink strong" if now in names else "muted")
        for name, share in shares:
            c.dot(at(share), 26, 4.2, "fill ink" if name == now else "hollow")
        return c

    told = [f"{name} {100 * share:+.1f} %".replace("-", "−") for name, share in shares]
    return Drawing("", f"Speed against now: {listed(told)}.", draw)


def sureness(share: float, draws: int, worst: float | None) -> Drawing:
    """Draw 20 dots for the share of draws in which a verdict holds, and the loss in the others."""

    def draw(width: float) -> Canvas:
        c = Canvas(min(width, 352.0), 20.0 if worst is None else 42.0)
        filled = round(20 * share)
        for k in range(20):
            c.dot(5 + 8.2 * k, 9, 3.1, "fill ink" if k < filled else "hollow")
        c.text(178, 13, f"holds in {round(share * draws)} of {draws} draws")
        if worst is not None:
            reach = min(1.0, math.log10(max(worst, 1.0)))
            c.line(2, 32, 162, 32, "axis")
            c.line(2, 32, 2 + 160 * reach, 32, "ink line heavy")
            c.dot(2 + 160 * reach, 32, 3.1, "fill ink")
            text = "never worse" if worst <= 1.005 else f"else at worst {worst:.2g} × slower"
            c.text(178, 36, text)
        return c

    text = f"The verdict holds in {round(share * draws)} of {draws} draws"
    if worst is not None and worst > 1.005:
        text += f"; in the others it is at worst {worst:.2g} times slower"
    return Drawing("", f"{text}.", draw)
