"""The section of a page that shows a front of throughput and power."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pearl.formatting import si
from pearl.planner.energy_front import FrontAssignment, front_assignments
from pearl.planning.plans import Plan
from pearl.report import words
from pearl.report.bands_text import rate_band
from pearl.report.document import Section
from pearl.report.figures.front import FrontPoint, front_chart
from pearl.report.lead import largest_task


def front_section(plans: Sequence[Plan]) -> Section | None:
    """Return the front with three labelled points; None if there is nothing to draw."""
    if not plans:
        return None
    rows = front_assignments(plans)
    fastest, best = rows[-1].fastest, max(plans, key=per_joule)
    points = labelled(rows)
    figure = front_chart([_stretch(row, points) for row in rows], fastest.value_unit)
    if figure is None:
        return None
    finding = (
        "Full speed is also the most efficient."
        if per_joule(fastest) >= per_joule(best) * 0.999
        else f"{si(best.power_w, 'W')} gives the most work per joule."
    )
    guide = (
        "Each line is one placement at decreasing speed: power is linear in its rate. Whiskers: "
        "90 % band of the speed. Power is modelled."
    )
    return Section("Speed and power", finding, guide, (figure,), brief=True)


def per_joule(plan: Plan) -> float:
    return plan.value / plan.power_w if plan.power_w > 0 else math.inf


def labelled(rows: Sequence[FrontAssignment]) -> list[FrontPoint]:
    """Return the points of least power, half speed and full speed."""
    fastest = rows[-1].fastest
    plans = [p for row in rows for p in row.plans]
    least = min(plans, key=lambda p: p.power_w)
    found = [_point(least, "least power")] if least is not fastest else []
    half = fastest.value / 2
    for row in rows:
        low, high = row.slowest, row.fastest
        if low.value <= half <= high.value and high.value > low.value:
            part = (half - low.value) / (high.value - low.value)
            watts = low.power_w + part * (high.power_w - low.power_w)
            found.append(FrontPoint(watts, half, _style(high), "half speed"))
            break
    return [*found, _point(fastest, "fastest")]


def _style(plan: Plan) -> str:
    """Return the colour of the device with the largest load."""
    return words.colour(plan, largest_task(plan).device)


def _point(plan: Plan, label: str = "") -> FrontPoint:
    return FrontPoint(plan.power_w, plan.value, _style(plan), label, rate_band(plan))


def _stretch(row: FrontAssignment, labelled: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points of one assignment, including labelled points."""
    ends = [row.slowest, row.fastest] if len(row.plans) > 1 else [row.fastest]
    points = [_point(p) for p in ends]
    for p in labelled:
        if p.style == _style(row.fastest) and (
            row.slowest.power_w <= p.power_w <= row.fastest.power_w
        ):
            points.append(p)
    return sorted(points, key=lambda p: p.power_w)
