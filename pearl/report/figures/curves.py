"""Returns over env steps: training, evaluations, the final test, and the settings of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pearl.formatting import count, listed, number
from pearl.planning.metrics_file import Row
from pearl.planning.runs import Run
from pearl.report.canvas import LETTER, Canvas, polyline, shorten, text_width, ticks
from pearl.report.document import Drawing
from pearl_devices.validation import LARGEST

Points = Sequence[tuple[float, float]]
MOST_POINTS = 300
"""Largest number of points of a line."""


def points_of(rows: Sequence[Row], key: str, *, changes: bool = False) -> list[tuple[float, float]]:
    """Return env steps and one column of `metrics.csv`, without values beyond LARGEST.

    changes: only the rows with a new value; later rows repeat the value of an evaluation.
    """
    found: list[tuple[float, float]] = []
    for r in rows:
        if {"env_steps", key} <= set(r) and 0 <= r["env_steps"] < LARGEST and abs(r[key]) < LARGEST:
            if changes and found and found[-1][1] == r[key]:
                continue
            found.append((r["env_steps"], r[key]))
    return found


@dataclass(frozen=True)
class Axes:
    """Scales of a chart of returns over env steps."""

    left: float
    right: float
    top: float
    bottom: float
    last: float
    low: float
    high: float

    def x(self, steps: float) -> float:
        return self.left + steps / self.last * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def line(self, points: Points) -> str:
        stride = max(1, math.ceil(len(points) / MOST_POINTS))
        kept = [*points[::stride], *([points[-1]] if (len(points) - 1) % stride else [])]
        return polyline((self.x(a), self.y(b)) for a, b in kept)


def axes(c: Canvas, points: Points, *, right: float, top: float, height: float) -> Axes | None:
    """Draw grid and ticks for these points; None if they have no range."""
    points = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not points:
        return None
    last = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if not (last > 0 and high > low):
        return None
    if 0 <= low <= 0.5 * high:
        low = 0.0
    marks = ticks(low, high)
    labels = [f"{y:,.6g}".replace("-", "−") for y in marks]
    left = max(map(len, labels)) * LETTER + 12
    found = Axes(left, c.width - right, top, top + height, last, low, high)
    for value, text in zip(marks, labels, strict=True):
        c.line(left, found.y(value), found.right, found.y(value))
        c.text(left - 8, found.y(value) + 4, text, "end")
    for steps in ticks(0, last, 3 if c.narrow else 5):
        late = found.x(steps) + LETTER * len(count(steps)) / 2 > c.width
        at = c.width if late else found.x(steps)
        c.text(at, found.bottom + 18, count(steps), "end" if late else "middle")
    c.text(found.right, found.bottom + 34, "env steps", "end")
    c.line(left, found.bottom, found.right, found.bottom, "axis")
    c.height = found.bottom + 42
    return found


def learning_curve(rows: Sequence[Row], run: Run | None = None) -> Drawing | None:
    """Draw return against env steps: training, evaluations as dots, and the final test at the
    right.

    None if there are too few points for a line.
    """
    training = points_of(rows, "mean_return_20")
    tests = points_of(rows, "eval_mean", changes=True)
    if max(len(training), len(tests)) < 2:
        return None
    final = _final(run)
    curve = _Curve(training, _with_repeats(tests, rows), final, run, _ranges(rows))
    if curve.draw(800.0).height == 0:
        return None
    parts = []
    if training:
        parts.append(f"training from {number(training[0][1])} to {number(training[-1][1])}")
    if tests:
        best = max(tests, key=lambda p: p[1])
        parts.append(f"best evaluation {number(best[1])} at {count(best[0])} env steps")
    parts += [f"final test of the {name} policy {number(mean)}" for name, mean, *_ in final]
    return Drawing("", f"Return over env steps: {listed(parts)}.", curve.draw)


def _with_repeats(tests: Points, rows: Sequence[Row]) -> Points:
    """Return the evaluations, and the end of the run if its last evaluations are alike.

    Rows repeat the latest evaluation, so evaluations with the result of the one before are not
    seen. They are assumed if the rows go on for more than the usual time between evaluations.
    """
    if len(tests) < 3:
        return tests
    usual = median(b - a for (a, _), (b, _) in pairwise(tests))
    steps = max((x for x, _ in points_of(rows, "eval_mean")), default=0.0)
    return [*tests, (steps, tests[-1][1])] if steps - tests[-1][0] > 1.5 * usual else tests


def _ranges(rows: Sequence[Row]) -> dict[float, tuple[float, float]]:
    """Return the lowest and the highest return of the evaluation at each number of env steps."""
    low, high = (dict(points_of(rows, key)) for key in ("eval_low", "eval_high"))
    return {s: (low[s], high[s]) for s in low if s in high}


Test = tuple[str, float, float, float]
"""Name of a policy, mean, lowest and highest return of its final test."""


def _final(run: Run | None) -> list[Test]:
    if run is None or run.returns.get("eval_mean") is None:
        return []
    found: list[Test] = []
    for name, key in (("best", ""), ("last", "last_")):
        mean, all_ = run.returns.get(f"{key}eval_mean"), run.returns.get(f"{key}eval_returns")
        if mean is None or (name == "last" and run.returns.get("best_is_last")):
            continue
        found.append((name, mean, min(all_ or [mean]), max(all_ or [mean])))
    return found


@dataclass(frozen=True)
class _Curve:
    training: Points
    tests: Points
    final: Sequence[Test]
    run: Run | None
    ranges: Mapping[float, tuple[float, float]] = field(default_factory=dict)

    def draw(self, width: float) -> Canvas:
        c = Canvas(width)
        right = (96.0 if c.narrow else 106.0) if self.final else 10.0
        span = [(0.0, v) for _, _, a, b in self.final for v in (a, b)]
        span += [(0.0, v) for s, _ in self.tests for v in self.ranges.get(s, ())]
        at = axes(c, [*self.training, *self.tests, *span], right=right, top=34, height=210)
        if at is None:
            return c
        c.text(0, 14, "return")
        self._threshold(c, at)
        if len(self.training) > 1:
            c.path(at.line(self.training), "line muted none")
            name = "training, last 20 episodes"
            x = at.x(self.training[int(len(self.training) * 0.55)][0])
            half = LETTER * len(name) / 2 + 4
            under = [at.y(v) for s, v in self.training if abs(at.x(s) - x) <= half]
            low = max(under) + 18
            level = low if low <= at.bottom - 6 else min(under) - 8
            c.text(x, level, name, "middle", "halo muted")
        if self.tests:
            if len(self.tests) > 1:
                c.path(at.line(self.tests), "thin d0 none")
            for x, y in self.tests:
                hint = f"evaluation at {count(x)} env steps: {number(y)}"
                if x in self.ranges:
                    low, high = self.ranges[x]
                    c.line(at.x(x), at.y(low), at.x(x), at.y(high), "thin d0 faint")
                    hint += f", episodes from {number(low)} to {number(high)}"
                c.dot(at.x(x), at.y(y), 3, "fill d0", hint)
            best = max(self.tests, key=lambda p: p[1])
            c.dot(at.x(best[0]), at.y(best[1]), 6, "ring")
            name, x = "best evaluation, kept", at.x(best[0])
            half = text_width(name, strong=True) / 2
            late = x + half > at.right
            level = at.y(best[1]) - 12
            c.text(x, level, name, "end" if late else "middle", "halo ink strong")
            first, wide = at.x(self.tests[0][0]), text_width("evaluations")
            beside = [at.y(v) for s, v in self.tests if at.x(s) - first <= wide]
            above = max(min(beside) - 12, at.top + 8)
            end = first + wide > at.right
            left, own = x - (2 * half if late else half), first - (wide if end else 0)
            if abs(above - level) < 16 and own < left + 2 * half and left < own + wide:
                above = max(beside) + 20
            c.text(first, above, "evaluations", "end" if end else "start", "halo d0")
        if self.final:
            c.text(width, 14, "final test", "end")
        for name, mean, low, high in self.final:
            x = at.right + (20 if name == "best" else 32)
            c.line(x, at.y(low), x, at.y(high), "ink line")
            c.dot(x, at.y(mean), 3.6, "fill ink" if name == "best" else "hollow")
            level = at.y(mean) + 4
            if name == "last" and abs(level - at.y(self.final[0][1]) - 4) < 16:
                level = at.y(self.final[0][1]) + (20 if mean <= self.final[0][1] else -12)
            c.text(width, level, f"{name} {number(mean)}", "end", "ink halo")
        return c

    def _threshold(self, c: Canvas, at: Axes) -> None:
        solution = self.run.solution if self.run else None
        if solution is None or solution.threshold is None:
            return
        if not at.low <= solution.threshold <= at.high:
            return
        y = at.y(solution.threshold)
        c.line(at.left, y, at.right, y, "dotted ink")
        goal = f"{solution.threshold:g}"
        text = f"solved: {goal}" if c.narrow else f"{goal} counts as solved"
        c.text(at.left + 6, y - 6, text, style="halo muted")


@dataclass(frozen=True)
class SettingCurve:
    """A setting of a sweep: its curve (env steps, mean, low, high), and its result."""

    name: str
    curve: Sequence[tuple[float, float, float, float]]
    low: float
    mean: float
    high: float


DASHES = ("solid", "dash1", "dash2", "dash3")


def sweep_curves(settings: Sequence[SettingCurve]) -> Drawing | None:
    """Draw the curves of the best settings with their bands; None if no curve has two points."""
    shown = [s for s in settings if len(s.curve) > 1][:4]
    every = [(x, v) for s in shown for x, *ends in s.curve for v in ends]
    if not shown:
        return None

    def draw(width: float) -> Canvas:
        c = Canvas(width)
        top = 16.0 + 18.0 * len(shown)
        at = axes(c, every, right=10, top=top, height=220)
        if at is None:
            return c
        for n, s in enumerate(shown):
            c.line(0, 10 + 18 * n, 26, 10 + 18 * n, f"line {DASHES[n]} ink")
            c.text(34, 14 + 18 * n, shorten(s.name, int((width - 34) / LETTER)), style="ink")
        for n, s in reversed(list(enumerate(shown))):
            low = [(x, a) for x, _, a, _ in s.curve]
            high = [(x, b) for x, _, _, b in reversed(s.curve)]
            if n == 0:
                c.path(at.line([*low, *high]) + "Z", "zone")
            c.path(at.line([(x, m) for x, m, _, _ in s.curve]), f"line {DASHES[n]} ink none")
        return c

    if draw(800.0).height == 0:
        return None
    told = [f"{s.name} ends at {number(s.curve[-1][1])}" for s in shown]
    return Drawing("", f"Return during training: {listed(told)}.", draw)


def intervals(settings: Sequence[SettingCurve]) -> Drawing | None:
    """Draw one row per setting: the mean as a dot on its interval, all on one scale."""
    ends = [v for s in settings for v in (s.low, s.high) if math.isfinite(v)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    if 0 <= low <= 0.5 * high:
        low = 0.0
    if not high > low:
        low, high = low - 1.0, high + 1.0

    def draw(width: float) -> Canvas:
        c = Canvas(width)
        left = min(max(len(s.name) for s in settings) * LETTER + 12, width * 0.46)
        right = 64.0
        x = _linear(low, high, left, width - right)
        bottom = 8 + 26.0 * len(settings)
        for tick in ticks(low, high, 3 if c.narrow else 5):
            c.line(x(tick), 4, x(tick), bottom)
            c.text(x(tick), bottom + 16, f"{tick:,.6g}".replace("-", "−"), "middle")
        c.text(width - right, bottom + 32, "return", "end")
        for n, s in enumerate(settings):
            y = 20 + 26.0 * n
            style = "ink strong" if n == 0 else "ink"
            c.text(0, y + 4, shorten(s.name, int(left / LETTER) - 1), style=style)
            c.whisker(x(s.low), x(s.mean), x(s.high), y, hollow=n > 0)
            c.text(width, y + 4, number(s.mean), "end", style)
        c.height = bottom + 40
        return c

    told = [f"{s.name} {number(s.mean)} ({number(s.low)} to {number(s.high)})" for s in settings]
    return Drawing("", f"Return with its 95 % interval: {listed(told[:12])}.", draw)


def _linear(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    return lambda value: left + (value - low) / (high - low) * (right - left)
