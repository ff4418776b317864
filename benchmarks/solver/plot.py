"""Cost against size, drawn: `python -m benchmarks.solver.plot RESULTS.json OUT.svg`.

RESULTS.json is what `python -m benchmarks.solver speed scale --json RESULTS.json` wrote. Left: CPU
seconds to proof of small problems; right: how far large ones are above the proven bound at the time
limit.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, EDGE = 420, 300, 56
COLOURS = ("#1b6ca8", "#c0532b", "#3b7d3b", "#7a4b94")

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One diagram with logarithmic axes. lines: label → (x, y) points."""

    title: str
    across: str
    up: str
    lines: dict[str, Points]


def panels(results: dict[str, Any]) -> list[Panel]:
    """The diagrams of a results file that has the parts speed and scale."""
    parts = results["parts"]
    missing = [name for name in ("speed", "scale") if name not in parts]
    if missing:
        raise ValueError(f"the results have no part {', '.join(missing)}; it has {list(parts)}")
    proofs: dict[str, Points] = {"median": [], "worst": []}
    for tasks, runs in sorted(parts["speed"]["to_proof"].items(), key=lambda item: int(item[0])):
        seconds = [r["cpu_s"] for r in runs]
        proofs["median"].append((float(tasks), statistics.median(seconds)))
        proofs["worst"].append((float(tasks), max(seconds)))
    above: dict[str, Points] = {}
    for s in sorted(parts["scale"]["solves"], key=lambda s: (s["devices"], s["tasks"])):
        if s["ratio"] == 1 and s["seed"] == 0:
            point = float(s["tasks"]), 100 * max(s["above"], 1e-4)
            above.setdefault(f"{s['devices']} devices", []).append(point)
    return [
        Panel("To proof, 6 devices × 4 modes", "tasks", "CPU seconds", proofs),
        Panel("Above the bound at the time limit, ratio 1", "tasks", "%", above),
    ]


def svg(diagrams: list[Panel]) -> str:
    """The diagrams side by side."""
    drawn = [
        f'<g transform="translate({k * WIDTH},0)">{_panel(p)}</g>' for k, p in enumerate(diagrams)
    ]
    size = f'width="{WIDTH * len(diagrams)}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>\n'


def _panel(p: Panel) -> str:
    points = [point for line in p.lines.values() for point in line]
    across, up = ([point[k] for point in points] for k in (0, 1))
    left, right = min(across) / 1.15, max(across) * 1.15
    low, high = min(up) / 1.5, max(up) * 1.5

    def x(v: float) -> float:
        return EDGE + (WIDTH - EDGE - 90) * math.log(v / left) / math.log(right / left)

    def y(v: float) -> float:
        return HEIGHT - 44 - (HEIGHT - 84) * math.log(v / low) / math.log(high / low)

    parts = [f'<text x="{EDGE}" y="20" font-size="13">{escape(p.title)}</text>']
    for v in sorted(set(across)):
        parts.append(f'<text x="{x(v):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{v:g}</text>')
    for v in _ticks(low, high):
        ends = f'x1="{EDGE}" x2="{WIDTH - 90}" y1="{y(v):.1f}" y2="{y(v):.1f}"'
        parts.append(f'<line {ends} stroke="#ddd"/>')
        parts.append(f'<text x="{EDGE - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    middle = (EDGE + WIDTH - 90) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}">{escape(p.across)}</text>')
    parts.append(f'<text x="{EDGE}" y="36">{escape(p.up)}</text>')
    for (label, line), colour in zip(p.lines.items(), COLOURS, strict=False):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in line
        ]
        end = x(line[-1][0]) + 8, y(line[-1][1]) + 4
        text = f'<text x="{end[0]:.1f}" y="{end[1]:.1f}" fill="{colour}">{escape(label)}</text>'
        parts.append(text)
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    steps = [m * 10.0**e for e in range(-5, 6) for m in (1, 2, 5)]
    return [v for v in steps if low <= v <= high]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    target.write_text(svg(panels(json.loads(source.read_text()))), encoding="utf-8")
