"""Drawings of a plan and a run: the calls of an iteration, predicted times, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pearl.formatting import WORD, marked, percent, ratio, si
from pearl.planning.plans import Plan
from pearl.planning.runs import Row, Run
from pearl.report import tables
from pearl.report.document import Box, Drawing, Label
from pearl_devices.validation import LARGEST

WIDTH = 960
"""User units of the width of every drawing."""
MARGIN = 130.0
"""User units to the left of a drawing, for labels."""
COLOURS = 8
"""Colours for tasks and settings; the style sheet has two more, for transfers and predictions."""
SEPARATE_FIRINGS = 400
"""A lane with more firings shows repeated firings of a task as one box."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that cover most of low to high."""
    span = high - low
    raw = span / about
    if not (0 < raw < math.inf):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def timeline(plan: Plan) -> Drawing:
    """One iteration: the calls of each lane in their order, one box a call, widths to scale."""
    row, top = 34.0, 8.0
    right = WIDTH - 20.0
    simulated = [k.lane for k in plan.lanes if marked(k.lane, plan.simulated) != k.lane]
    shown = {k.lane: shorten(k.lane, 17) for k in plan.lanes}
    shown |= {name: f"{shown[name]} ({WORD})" for name in simulated}
    left = max(MARGIN, 16 + 6.8 * max(map(len, shown.values()), default=0))
    scale = (right - left) / max(plan.period_s, 1e-300)
    names = [t.task for t in plan.tasks]
    boxes: list[Box] = []
    labels: list[Label] = []
    legend: list[tuple[int, str]] = []
    for number, lane in enumerate(plan.lanes):
        y = top + number * row
        labels.append(Label(left - 10, y + 17, shown[lane.lane], "end"))
        if not lane.width:
            # Transfers have no task of the plan behind them: only the lane's load is known.
            width = min(lane.load, 1.0) * (right - left)
            hint = f"{lane.lane}: {tables.order(plan, lane)}, {percent(lane.load)} of the period"
            boxes.append(Box(left, y, width, 24, COLOURS, text_if_fits("transfers", width), hint))
            continue
        apart = len(lane.order) <= SEPARATE_FIRINGS
        x = left
        for call in tables.calls(plan, lane, apart=apart):
            first = call.tasks[0]
            width = call.seconds * scale
            colour = names.index(first) % COLOURS if first in names else COLOURS
            name = " + ".join(call.tasks)
            legend.append((colour, name))
            times = f" × {call.firings}" if call.firings > 1 and len(call.tasks) == 1 else ""
            hint = f"{lane.lane}: {name}{times}, {si(call.seconds, 's')}"
            boxes.append(Box(x, y, width, 24, colour, text_if_fits(name, width), hint))
            x += width
    bottom = top + len(plan.lanes) * row
    lines = []
    for tick in ticks(0.0, plan.period_s, 6):
        x = left + tick * scale
        lines.append((x, top - 4, x, bottom))
        labels.append(Label(x, bottom + 16, si(tick, "s"), "middle"))
    idle = any(lane.load < 0.999 for lane in plan.lanes)
    caption = (
        "Each row is a lane; a box is one call in the lane's order, as wide as it takes the lane."
    )
    if idle:
        caption += " Empty space is idle time, which in reality lies between the calls."
    return Drawing(
        "One iteration",
        caption,
        bottom + 26,
        tuple(boxes),
        tuple(labels),
        tuple(lines),
        legend=tuple(dict.fromkeys(legend)),
    )


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def text_if_fits(text: str, width: float) -> str:
    """The text if it fits a box of this width at the drawing's type size, else nothing."""
    return text if 6.6 * len(text) + 8 <= width else ""


def prediction_bars(run: Run) -> Drawing | None:
    """Predicted and found seconds per firing, task by task; None where no task was timed."""
    source = "simulated" if run.simulated else "measured"
    shown = [t for t in run.tasks if t.measured_s is not None]
    if not shown:
        return None
    longest = max((max(t.predicted_s, t.measured_s or 0.0) for t in shown), default=0.0)
    left = min(20 + 6.8 * max((len(t.task) for t in shown), default=0), WIDTH / 3)
    scale = (WIDTH - left - 270) / longest if longest > 0 else 0.0
    row, boxes, labels = 38.0, [], []
    for number, t in enumerate(shown):
        y, seconds = 6 + number * row, t.measured_s or 0.0
        labels.append(Label(left - 10, y + 18, shorten(t.task, 40), "end"))
        for k, (kind, value) in enumerate((("predicted", t.predicted_s), (source, seconds))):
            hint = f"{t.task}, {kind}: {si(value, 's')}"
            boxes.append(Box(left, y + 13 * k, max(value * scale, 1.0), 11, 9 - 8 * k, "", hint))
        end = left + max(t.predicted_s, seconds) * scale + 8
        text = f"{si(seconds, 's')} {source}, {ratio(seconds, t.predicted_s)} of predicted"
        labels.append(Label(end, y + 18, text))
    return Drawing(
        f"Predicted and {source} time per firing",
        "",
        6 + len(shown) * row,
        tuple(boxes),
        tuple(labels),
        legend=((9, "predicted"), (1, source)),
    )


def learning_curve(rows: Sequence[Row]) -> Drawing | None:
    """Return against env steps: the mean of recent episodes, and the latest evaluation.

    None where there is not enough to draw a line. Values beyond LARGEST are left out.
    """
    series = [
        (
            colour,
            name,
            [
                (r["env_steps"], r[key])
                for r in rows
                if {"env_steps", key} <= set(r)
                and 0 <= r["env_steps"] < LARGEST
                and abs(r[key]) < LARGEST
            ],
        )
        for colour, key, name in (
            (1, "mean_return_20", "mean of the last 20 training episodes"),
            (2, "eval_mean", "latest evaluation of the greedy policy"),
        )
    ]
    series = [(colour, name, line) for colour, name, line in series if len(line) > 1]
    return curves("Return", series)


Curve = tuple[int, str, Sequence[tuple[float, float]]]
"""Colour, name and points of a line."""


def curves(
    title: str,
    series: Sequence[Curve],
    bands: Sequence[tuple[int, Sequence[tuple[float, float, float]]]] = (),
) -> Drawing | None:
    """Lines over env steps; None where nothing is to be seen.

    bands: colour and (env steps, low, high) of areas behind the lines.
    """
    points = [point for _, _, line in series for point in line]
    points += [(x, y) for _, band in bands for x, *ends in band for y in ends]
    if not points:
        return None
    last = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if not (last > 0 and high > low):
        return None
    left, right, top, bottom = 70.0, WIDTH - 20.0, 10.0, 240.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + x / last * (right - left),
            bottom - (y - low) / (high - low) * (bottom - top),
        )

    def drawn(line: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*p) for p in line))

    labels, lines = [], []
    for y in ticks(low, high):
        _, v = place(0, y)
        lines.append((left, v, right, v))
        labels.append(Label(left - 8, v + 4, f"{y:,.6g}", "end"))
    for x in ticks(0, last, 6):
        h, _ = place(x, low)
        labels.append(Label(h, bottom + 18, f"{x:,.0f}", "middle"))
    labels.append(Label(right, bottom + 36, "env steps", "end"))
    around = [
        (colour, [*((x, a) for x, a, _ in band), *((x, b) for x, _, b in reversed(band))])
        for colour, band in bands
    ]
    return Drawing(
        title,
        "",
        bottom + 44,
        labels=tuple(labels),
        lines=tuple(lines),
        paths=tuple((colour, drawn(line)) for colour, _, line in series),
        legend=tuple((colour, name) for colour, name, _ in series),
        areas=tuple((colour, drawn(line)) for colour, line in around),
    )
