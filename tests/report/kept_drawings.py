"""Drawings of every figure, made by hand, at both widths; and the trace of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pearl.report.canvas import NARROW, WIDE, Canvas
from pearl.report.document import Drawing
from pearl.report.figures.bars import (
    BarRow,
    Part,
    almost_as_good,
    bar_chart,
    stacked_bar,
    stacked_bars,
)
from pearl.report.figures.curves import SettingCurve, intervals, learning_curve, sweep_curves
from pearl.report.figures.front import FrontPoint, front_chart, sureness, tried_numbers
from pearl.report.figures.graph import task_graph
from pearl.report.figures.ratios import ratio_chart
from pearl.report.figures.roofline import roofline
from pearl.report.figures.timeline import timeline
from pearl.report.run_trace import run_trace
from pearl.report.svg import canvas_svg
from tests.examples import example_run, recorded, two_device_plan
from tests.report.kept_pages import PLACE, SOLVED, copies, other_edges, sum_of

Figures = Iterator[tuple[str, Drawing | None]]


def bars() -> Figures:
    rows = [
        BarRow("learn 20 % faster", 0.25, "+25 %"),
        BarRow("a change with a name of more than one line of text, and of two", 0.1, "+10 %"),
        BarRow("older data", 0.05, "+5.0 %", hollow=True, below="act on weights one iteration old"),
        BarRow("nothing", 0.0, "0 %", style="fill d1"),
        BarRow("unknown", math.inf, "–"),
    ]
    yield "bars", bar_chart(rows, "Bars.")
    close = [("this plan", 16_000.0, 0.0), ("act on the GPU", 15_992.0, 0.0004)]
    more = [("learn on the CPU and a name that is so long that it takes two", 15_200.0, 0.05)]
    yield "close plans", almost_as_good([*close, *more], "env steps/s", 0.1)
    parts = [Part("learn", 2.0, "d1 t10"), Part("step", 0.6, "d0 t6"), Part("act", 0.2, "d0 t4"),
             Part("none", 0.0, "d0 t4"), Part("waiting for others", 0.9, "hatch"),
             Part("a part with a long name", 0.3, "grey t4")]  # fmt: skip
    yield "parts", stacked_bar(parts)
    lanes = [("CPU core", parts[1:5]), ("a device with a long name in words", parts[:2])]
    yield "parts of lanes", stacked_bars(lanes)


def curves() -> Figures:
    run = example_run(solution=SOLVED)
    rows = tuple(
        {
            "env_steps": 40.0 * i,
            "mean_return_20": 500.0 * math.tanh(i / 200) + 20.0 * (i % 7),
            "eval_mean": float(min(i // 50, 6) * 70 + 10 * (i // 350)),
            "eval_low": float(min(i // 50, 6) * 50),
            "eval_high": float(min(i // 50, 6) * 80),
        }
        for i in range(1, 650)
    )
    yield "learning", learning_curve(rows, run)
    settings = [
        SettingCurve(f"setting {n}, lr=1e-{n}", [(100.0 * k, n + k, n + k - 1.0, n + k + 2.0 * n)
                     for k in range(1, 6)], 5.0 - n, 5.25, 6.0 + n)
        for n in range(5)
    ]  # fmt: skip
    short = SettingCurve("one point", [(1.0, 2.0, 2.0, 2.0)], 10.0, 20.0, 30.0)
    yield "settings", sweep_curves([short, *settings])
    yield "intervals", intervals(settings)


def fronts() -> Figures:
    low = FrontPoint(80.0, 4_000.0, "d0", "least power", (3_000.0, 5_500.0))
    half = FrontPoint(95.0, 8_000.0, "d1", "half speed")
    fast = FrontPoint(162.0, 16_000.0, "d1", "fastest", (9_000.0, 26_000.0))
    yield "front", front_chart([[low], [half, fast]], "env steps/s")
    close = replace(low, power_w=158.0, rate=15_500.0, label="near", band=None)
    yield "front, labels that meet", front_chart([[low, close], [fast]], "env steps/s")
    tried = [("1", 500.0), ("2", 900.0), ("4", 1_000.0), ("8", 1_020.0), ("16", 1_900.0)]
    yield "tried", tried_numbers(tried, "4")
    yield "sure", sureness(0.97, 200, 1.25)


def graphs() -> Figures:
    two = two_device_plan()
    yield "graph", task_graph(replace(two, edges=other_edges(two)))


def ratios() -> Figures:
    two = two_device_plan()
    run = example_run(two)
    apart = tuple(replace(t, measured_s=t.predicted_s * (0.1 + n)) for n, t in enumerate(run.tasks))
    yield "ratios apart", ratio_chart(replace(run, tasks=apart, simulated=True))
    work = tuple(replace(t, flops=10.0 ** (n + 3), bytes=4e4) for n, t in enumerate(run.tasks))
    yield "roofline", roofline(two, replace(run, tasks=work), PLACE)


def timelines() -> Figures:
    two = two_device_plan()
    yield "timeline, measured", timeline(two, example_run(two, **recorded(two)), PLACE)


CALL = r'<rect class="{}"[^>]*><title>{}</title></rect>'


def drawn(figure: Drawing | None) -> str:
    """Return a figure at both widths, with checksums of the rest of long outlines and of calls."""
    if figure is None:
        return "none\n"
    shown = "".join(canvas_svg(figure.draw(w), "") for w in (WIDE, NARROW))
    alike = CALL.format('([^"]*)', "([^<]*)"), CALL.format(r"\2", r"\3")
    shown = re.sub("({})((?:{}){{2,}})".format(*alike), lambda m: m[1] + sum_of(m[4]), shown)
    return re.sub(r'(?<= d="[^"]{60})[^"]{600,}(?=[^"]{60}")', lambda m: sum_of(m[0]), shown)


def hatched() -> Figures:
    """Shapes of a canvas that no figure needs."""

    def draw(width: float) -> Canvas:
        c = Canvas(width, 60.0)
        c.hatch(3.0, 5.0, 100.0, 20.0)
        c.hatch(width - 30.0, 5.0, 90.0, 20.0)
        c.hatch(-20.0, 30.0, 20.4, 20.0)
        c.arrow(10.0, 40.0, 10.0, 40.0)
        c.arrow(10.0, 40.0, 90.0, 55.0, "ink")
        c.whisker(100.0, 120.0, 160.0, 45.0)
        c.whisker(200.0, 220.0, 260.0, 45.0, hollow=True)
        c.rect(270.0, 40.0, -5.0, 9.0, "fill ink", hint="a < b & c")
        c.path("M0 0L9 9", "line ink", hint='"quoted"')
        return c

    yield "shapes", Drawing("", 'It says "a < b".', draw)


def trace() -> str:
    """The first of all events of a name in the trace of a run; and of copies, simulated."""
    two, both = two_device_plan(), copies(two_device_plan())
    run = example_run(two, **recorded(two))
    lines, alike = list[str](), dict[tuple[Any, ...], list[str]]()
    for name, found in (
        ("run", run_trace(run, PLACE)),
        ("copies, simulated", run_trace(replace(run, plan=both, simulated=True))),
    ):
        lines.append(f"{name}: {found['displayTimeUnit']}")
        for event in found["traceEvents"]:
            line = " ".join(f"{k}={v}" for k, v in event.items() if k != "args")
            line += f" {json.dumps(event['args'], ensure_ascii=False)}"
            alike.setdefault((name, *(event.get(k) for k in ("ph", "pid", "name"))), []).append(
                line
            )
    for (name, *_), (one, *more) in alike.items():
        rest = f" {len(more)} more: {sum_of(''.join(more))}" if more else ""
        lines.append(f"{name}: {one}{rest}")
    return "\n".join(lines) + "\n"


DRAWINGS = {
    "bars.svg": bars, "curves.svg": curves, "fronts.svg": fronts, "graphs.svg": graphs,
    "ratios.svg": ratios, "timelines.svg": timelines, "shapes.svg": hatched,
}  # fmt: skip


def all_drawn(file: str) -> str:
    return "".join(f"## {name}\n{drawn(figure)}" for name, figure in DRAWINGS[file]())
