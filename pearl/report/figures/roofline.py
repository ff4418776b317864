"""The kernels of a plan under the roofs of their devices: rate against arithmetic per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pearl.formatting import listed, percent, si
from pearl.planning.plans import Plan
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.canvas import Box, Canvas, overlap, polyline, text_width
from pearl.report.document import Drawing
from pearl_devices import Platform

FAR = 1e30
"""A rate or an intensity beyond this limit is no measurement."""


@dataclass(frozen=True)
class KernelPoint:
    """A task.

    intensity: FLOP per byte. rate: FLOP/s as estimated or measured.
    share: of the roof at this intensity.
    """

    name: str
    device: str
    intensity: float
    rate: float
    share: float


@dataclass(frozen=True)
class Roof:
    """Peak and bandwidth of a device, for the width that the plan uses."""

    device: str
    peak: float
    bandwidth: float

    def at(self, intensity: float) -> float:
        return min(self.peak, intensity * self.bandwidth)


def kernel_points(
    plan: Plan, run: Run | None = None, platform: Platform | None = None
) -> tuple[list[Roof], list[KernelPoint]]:
    """Return roofs and tasks of a plan that has its problem, or of a run at its measured times;
    nothing for a plan from a file.

    platform: of the plan; None: that of its problem.
    """
    if platform is None and plan.problem is not None:
        platform = plan.problem.costs.platform
    work, measured_s = _work(plan, run)
    if platform is None:
        return [], []
    widths = {t.device: t.width for t in plan.tasks}
    roofs = {}
    for d in platform.devices:
        if d.name in widths and not d.simulated:  # a closed form has no roof
            part = min(1.0, widths[d.name] / d.width)
            roofs[d.name] = Roof(d.name, d.peak_flops_per_s * part, d.memory_bytes_per_s * part)
    points = []
    for t in {t.task: t for t in reversed(plan.tasks)}.values():
        (flops, moved), roof = work.get(t.task, (0.0, 0.0)), roofs.get(t.device)
        seconds = measured_s.get(t.task, 0.0 if run is not None else t.seconds)
        if roof and min(flops, moved, seconds, roof.peak, roof.bandwidth) > 0:
            x, rate = flops / moved, flops / seconds
            if not 1 / FAR < min(x, rate) <= max(x, rate) < FAR:  # from a damaged file
                continue
            points.append(KernelPoint(t.task, t.device, x, rate, rate / roof.at(x)))
    used = [r for r in roofs.values() if any(p.device == r.device for p in points)]
    return used, points


def _work(plan: Plan, run: Run | None) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """Return arithmetic and bytes of a firing of each task, and the measured seconds of each
    task."""
    if run is not None:
        timed = {t.task: t.measured_s for t in run.tasks if t.measured_s and not run.simulated}
        return {t.task: (t.flops, t.bytes) for t in run.tasks}, timed
    if plan.problem is None:
        return {}, {}
    kernels = {t.name: t.kernel for t in plan.problem.graph.tasks}
    return {n: (k.flops, k.bytes_in + k.bytes_out) for n, k in kernels.items()}, {}


def roofline(
    plan: Plan, run: Run | None = None, platform: Platform | None = None
) -> Drawing | None:
    """Draw the roofline chart; None for a plan from a file, or if no kernel counts arithmetic.

    run, platform: see `kernel_points`.
    """
    roofs, points = kernel_points(plan, run, platform)
    if not points:
        return None
    told = [f"{p.name} {percent(p.share)} of its roof" for p in points]
    return Drawing(
        "", f"Roofline: {listed(told)}.", lambda width: _draw(width, plan, roofs, points)
    )


def _decade(k: int) -> str:
    """Return a power of ten with its prefix: `10 G`."""
    prefix = {0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}.get(k // 3, f"e{3 * (k // 3)}")
    return f"{10 ** (k % 3)} {prefix}".strip()


def _draw(width: float, plan: Plan, roofs: list[Roof], points: list[KernelPoint]) -> Canvas:
    c = Canvas(width)
    left, right, top, bottom = 68.0, width - 12.0, 24.0, 270.0
    xs = [p.intensity for p in points] + [r.peak / r.bandwidth for r in roofs]
    ys = [p.rate for p in points] + [r.peak for r in roofs]
    x0, x1 = (math.floor(math.log10(min(xs)) - 0.2), math.ceil(math.log10(max(xs)) + 0.2))
    y0, y1 = (math.floor(math.log10(min(ys)) - 0.2), math.ceil(math.log10(max(ys)) + 0.1))

    def x(value: float) -> float:
        return left + (math.log10(value) - x0) / (x1 - x0) * (right - left)

    def y(value: float) -> float:
        return bottom - (math.log10(value) - y0) / (y1 - y0) * (bottom - top)

    c.text(0, 12, "FLOP/s")
    for k in range(y0, y1 + 1, 2 if y1 - y0 > 6 else 1):
        c.line(left, y(10.0**k), right, y(10.0**k))
        c.text(left - 8, y(10.0**k) + 4, _decade(k), "end")
    for k in range(x0, x1 + 1):
        c.text(x(10.0**k), bottom + 18, f"{10.0**k:g}", "middle")
    c.text(right, bottom + 34, "FLOP per byte", "end")
    c.line(left, bottom, right, bottom, "axis")
    for r in roofs:
        start = max(10.0**x0, 10.0**y0 / r.bandwidth)
        knee, end = r.peak / r.bandwidth, 10.0**x1
        style = words.colour(plan, r.device)
        corners = ((start, start * r.bandwidth), (knee, r.peak), (end, r.peak))
        c.path(polyline((x(a), y(b)) for a, b in corners), f"line {style} none")
        name = words.device_name(r.device, plan.simulated)
        c.text(right - 2, y(r.peak) - 6, f"{name}: {si(r.peak, 'FLOP/s')}", "end", f"halo {style}")
    boxes: list[Box] = []
    for p in sorted(points, key=lambda p: -p.rate):
        style = words.colour(plan, p.device)
        a, b = x(p.intensity), y(p.rate)
        hint = f"{p.name}: {si(p.rate, 'FLOP/s')}, {percent(p.share)} of its roof"
        c.dot(a, b, 4, f"fill {style}", hint)
        wide = text_width(p.name)
        sides = [(a + 8, b + 4, "start"), (a - 8, b + 4, "end")]
        spots = [*sides, (a, b - 9, "middle"), (a, b + 18, "middle")]
        for tx, ty, anchor in spots:
            begin = {"start": tx, "end": tx - wide, "middle": tx - wide / 2}[anchor]
            box = (begin, ty - 10, begin + wide, ty + 3)
            if left < begin and box[2] < right and not any(overlap(box, q) for q in boxes):
                break
        boxes += [box, (a - 5, b - 5, a + 5, b + 5)]
        c.text(tx, ty, p.name, anchor, "halo ink")
    c.height = bottom + 42
    return c
