"""A balance in words and as a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pearl.formatting import count, percent, si
from pearl.planner.gpu_balance import Balance, SweepPoint
from pearl.planner.gpu_slices import MOST_SLICES
from pearl.planner.sliced_gpu import Sliced
from pearl.text_tables import Column, Table, table_text

WIDTH, HEIGHT, EDGE = 420, 260, 64
COLOURS = ("#1b6ca8", "#c0532b")


def balance_text(found: Balance) -> str:
    """The sweeps, the balance points, and what halving a part costs."""
    parts = [
        _sweep(f"{found.spec} on {found.platform}: an actor a core", found.cores),
        _sweep("Multiprocessors, all cores", found.sms) if found.points else "",
        _sweep("Actors, the whole machine", found.actors),
    ]
    if found.points:
        heading = tuple(
            Column(name, "right") for name in ("SMs", "threads needed", "by sweep", "threads : SM")
        )
        rows = tuple(
            (
                str(p.sms),
                "none suffice" if p.closed is None else f"{p.closed:.3g}",
                "more than there are" if p.swept is None else str(p.swept),
                "-" if p.ratio is None else f"{p.ratio:.3g}",
            )
            for p in found.points
        )
        parts.append(table_text(Table("Where actors and GPU take equally long", heading, rows)))
    for name, left in (("SMs", found.halved_sms), ("threads", found.halved_cores)):
        if left is not None:
            parts.append(f"half the {name}: {100 * (1 - left):.0f} % less throughput")
    parts.append("Predicted, energy modelled; slack enough for nobody to wait for anybody.")
    return "\n\n".join(part for part in parts if part)


def slices_text(found: Sliced) -> str:
    """The roles on the GPU, both layouts, the best slices, and how their gradients are summed."""
    heading = (Column("role"), *(Column(n, "right") for n in ("an iteration takes", "share of it")))
    roles = (("simulator", found.simulator), ("agent", found.agent), ("trainer", found.trainer))
    rows = tuple((name, si(r.seconds, "s"), percent(r.share)) for name, r in roles)
    title = f"Slices of {found.device}, which hold simulator, agent and trainer"
    lines = [
        f"colocated over dedicated slices: {found.serving_gain:.2f} x serving, "
        f"{found.training_gain:.2f} x training"
    ]
    best, way, sizes = found.best, found.reduction, found.environments
    if best is None or way is None:
        lines.append(f"no slice has room in memory, with {sizes[0]} environments as the fewest")
    else:
        lines += [
            f"best: {best.slices} slices of {best.environments} environments a GPU, "
            f"{count(found.gpus * best.env_steps_per_s)} env steps/s on {found.gpus}, "
            f"{si(best.memory_bytes, 'B')} each, by {best.probes} of "
            f"{MOST_SLICES * len(sizes)} estimates",
            f"their gradients summed: {way.name}, {si(way.seconds, 's')}"
            + (f" ({way.on_ring} of a GPU's slices on the ring)" if way.on_ring else ""),
        ]
    if found.refused:
        lines.append(f"tried with up to {sizes[-1]} environments a slice; beyond: {found.refused}")
    lines.append("Predicted, by the mapping model of GMI-DRL (arXiv 2206.08482).")
    return "\n".join([table_text(Table(title, heading, rows)), "", *lines])


def _sweep(title: str, points: Sequence[SweepPoint]) -> str:
    heading = (
        *(Column(n, "right") for n in ("actors", "cores", "SMs", "env steps/s", "env steps/J")),
        Column("busiest"),
        *(Column(n, "right") for n in ("actors take", "GPU takes", "host takes")),
    )
    rows = tuple(
        (
            str(p.actors),
            str(p.cores),
            "-" if p.sms is None else str(p.sms),
            count(p.env_steps_per_s),
            count(p.env_steps_per_j),
            {"gpu": "GPU"}.get(p.busiest, p.busiest),
            si(p.actors_s, "s"),
            "-" if p.sms is None else si(p.gpu_s, "s"),
            si(p.host_s, "s"),
        )
        for p in points
    )
    return table_text(Table(title, heading, rows))


def balance_svg(found: Balance) -> str:
    """Throughput and env steps per joule over cores and over SMs, each relative to its largest."""
    panels = [("cores, an actor each", [(float(p.cores), p) for p in found.cores])]
    if found.points:
        panels.append(("SMs, all cores", [(float(p.sms or 0), p) for p in found.sms]))
    drawn = [
        f'<g transform="translate({k * WIDTH},0)">{_panel(name, points)}</g>'
        for k, (name, points) in enumerate(panels)
    ]
    size = f'width="{WIDTH * len(drawn)}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>\n'


def _panel(name: str, points: Sequence[tuple[float, SweepPoint]]) -> str:
    left, right = points[0][0], points[-1][0]

    def x(value: float) -> float:
        span = math.log(right / left) if right > left else 1.0
        return EDGE + (WIDTH - EDGE - 30) * math.log(value / left) / span

    def y(share: float) -> float:
        return HEIGHT - 44 - (HEIGHT - 96) * share

    parts = [f'<text x="{EDGE}" y="{HEIGHT - 10}">{escape(name)}</text>']
    for value, _ in points:
        place = f'x="{x(value):.1f}" y="{HEIGHT - 28}"'
        parts.append(f'<text {place} text-anchor="middle">{value:g}</text>')
    for share in (0.0, 0.5, 1.0):
        ends = f'x1="{EDGE}" x2="{WIDTH - 30}" y1="{y(share):.1f}" y2="{y(share):.1f}"'
        parts.append(f'<line {ends} stroke="#ddd"/>')
        place = f'x="{EDGE - 6}" y="{y(share) + 4:.1f}"'
        parts.append(f'<text {place} text-anchor="end">{100 * share:.0f} %</text>')
    lines = (
        ("env steps/s", [(v, p.env_steps_per_s) for v, p in points]),
        ("env steps/J", [(v, p.env_steps_per_j) for v, p in points]),
    )
    for (label, line), colour, at in zip(lines, COLOURS, (20, 36), strict=True):
        most = max(value for _, value in line) or 1.0
        path = " ".join(f"{x(v):.1f},{y(value / most):.1f}" for v, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        text = f"{label}, 100 % = {count(most)}"
        parts.append(f'<text x="{EDGE}" y="{at}" fill="{colour}">{escape(text)}</text>')
    return "".join(parts)
