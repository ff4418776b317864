"""Prediction against measurement: ratios on a logarithmic axis with bands as whiskers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pearl.formatting import listed, percent, ratio, si
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.canvas import LETTER, Canvas, shorten
from pearl.report.document import Drawing
from pearl.report.figures.timeline import iteration_s
from pearl.report.lane_time import member_shares

SMALL = 0.05
"""Rows with a smaller share of the time are hollow, because an error there costs little."""

FAR = 1e9
"""A ratio beyond this limit is no measurement and is omitted."""

MOST = 6
"""Largest power of 4 on the axis; a larger ratio is drawn at its end."""


@dataclass(frozen=True)
class TimeRatio:
    """A predicted time with its band, and the measured time.

    name: in words. task: its name in the plan; empty for the iteration.
    share: of the measured iteration.
    """

    name: str
    task: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    share: float

    @property
    def ratio(self) -> float:
        return self.measured_s / self.predicted_s

    @property
    def has_band(self) -> bool:
        """Whether the prediction has a band; without one, its ends are equal."""
        return self.low_s < self.high_s

    @property
    def inside(self) -> bool:
        """Whether the measurement is in the band of the prediction."""
        return self.low_s <= self.measured_s <= self.high_s


def comparisons(run: Run) -> list[TimeRatio]:
    """Return the iteration, then each task by its share of the time.

    Members of a fused call were timed one by one, which lengthens short ones. They divide the share
    of their call in proportion to these times, so that shares add up to the iteration.
    """
    plan, rows = run.plan, []
    measured = iteration_s(run)
    whole_s = measured or plan.period_s
    if measured and plan.period_s > 0:
        low, high = (plan.bands and plan.bands.period_s) or (plan.period_s, plan.period_s)
        rows.append(TimeRatio(words.ITERATION, "", plan.period_s, low, high, measured, 1.0))
    placed = {t.task: t for t in reversed(plan.tasks)}
    timed = {t.task: t for t in run.tasks if t.measured_s and t.predicted_s}
    shares = {
        member.partition("#")[0]: part * min((t.measured_s or 0.0) / whole_s, 1.0)
        for name, t in timed.items()
        if "+" in name
        for member, part in member_shares(run, name).items()
    }
    each = []
    for name, t in timed.items():
        p = placed.get(name)
        if p is None or t.measured_s is None:
            continue
        scale = t.predicted_s / p.seconds if p.seconds else 1.0
        # of a run of few iterations, the calls that were timed may be slower than the others
        share = min(shares.get(name, t.measured_s * p.firings / whole_s), 1.0)
        each.append(
            TimeRatio(
                words.task_word(p), name, t.predicted_s, p.low_s * scale, p.high_s * scale,
                t.measured_s, share,
            )
        )  # fmt: skip
    found = rows + sorted(each, key=lambda r: (-r.share, -r.measured_s))
    return [r for r in found if 1 / FAR < r.ratio < FAR and math.isfinite(r.share)]


def ratio_chart(run: Run) -> Drawing | None:
    """Draw measured over predicted time of each task; None if nothing was timed."""
    rows = comparisons(run)
    if not rows:
        return None
    source = "simulated" if run.simulated else "measured"
    told = [f"{r.name} {ratio(r.measured_s, r.predicted_s)} times" for r in rows[:8]]
    sentence = f"{source.capitalize()} over predicted time: {listed(told)}."
    return Drawing("", sentence, lambda width: _draw(width, rows, source))


def reach(rows: Sequence[TimeRatio]) -> int:
    """Return the end of the axis from 1/reach to reach: 4, or 16, 64, … if the data need it."""
    off = max((abs(math.log(r.ratio)) for r in rows if r.ratio > 0), default=0.0)
    return int(4 ** min(MOST, max(1, math.ceil(off / math.log(4) - 1e-9))))


def _draw(width: float, rows: Sequence[TimeRatio], source: str) -> Canvas:
    c = Canvas(width)
    most = reach(rows)
    left, right = (112.0, 62.0) if c.narrow else (310.0, 150.0)
    span = width - left - right

    def at(value: float) -> float:
        share = math.log(min(max(value, 1 / most), most)) / math.log(most)
        return left + span * (share + 1) / 2

    c.text(0, 14, "per call")
    if not c.narrow:
        c.text(200, 14, "predicted", "end")
        c.text(284, 14, source, "end")
    c.text(at(1) - 10, 14, "◂ faster", "end")
    c.text(at(1) + 10, 14, "slower ▸")
    c.text(width - (0 if c.narrow else 90), 14, "ratio", "end")
    if not c.narrow:
        c.text(width, 14, "of the time", "end")
    bottom = 32 + 24.0 * len(rows) + (8 if rows[0].name == words.ITERATION else 0)
    steps = round(math.log(most, 2))
    marks = [2.0**k for k in range(-steps, steps + 1)]
    for value in marks[:: 1 if steps <= 2 else steps // 2]:
        c.line(at(value), 24, at(value), bottom, "axis" if value == 1 else "grid")
        text = f"{value:g}" if value >= 1 else {0.5: "½", 0.25: "¼"}.get(value, f"1/{1 / value:g}")
        c.text(at(value), bottom + 16, f"{text} ×", "middle")
    y = 42.0
    for r in rows:
        whole = r.name == words.ITERATION
        faint = not whole and r.share < SMALL
        style = "ink strong" if whole else "muted" if faint else "ink"
        c.text(0, y + 4, shorten(r.name, int((left if c.narrow else 130) / LETTER)), style=style)
        if not c.narrow:
            c.text(200, y + 4, si(r.predicted_s, "s"), "end", style)
            c.text(284, y + 4, si(r.measured_s, "s"), "end", style)
        low, high = at(r.low_s / r.predicted_s), at(r.high_s / r.predicted_s)
        c.rect(low, y - 6, max(high - low, 2.0), 12, "zone")
        c.line(low, y - 5, low, y + 5, "thin ink")
        c.line(high, y - 5, high, y + 5, "thin ink")
        c.line(low, y, high, y, "thin ink")
        c.dot(at(r.ratio), y, 4, "hollow" if faint else "fill ink")
        c.text(width - (0 if c.narrow else 90), y + 4, f"{r.ratio:.2f} ×", "end", style)
        if not c.narrow:
            share = percent(r.share) if r.share < 0.1 else f"{100 * r.share:.0f} %"
            c.text(width, y + 4, share, "end", style)
        y += 24.0
        if whole and len(rows) > 1:
            c.line(0, y - 8, width, y - 8, "grid")
            y += 8.0
    c.height = bottom + 24
    return c
