"""Training of pipelines with micro-batches in flight: a part of `python -m benchmarks.solver`.

Periods of plans of `pearl.solve` over proven bounds, in CPU-seconds of this process (`cycles`).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_most
from benchmarks.solver.cycles import against_bounds, warm_up
from benchmarks.solver.loops import Loop, pipeline

CASES = (
    (6, 2, 2, True), (6, 4, 8, False), (12, 2, 4, False), (12, 4, 4, True), (12, 4, 8, False),
    (24, 4, 8, True), (24, 4, 4, False), (24, 8, 16, True), (48, 4, 8, False), (48, 8, 16, False),
    (48, 8, 8, True),
)  # fmt: skip
"""Blocks, devices, micro-batches in flight, whether the devices are equal."""

SOON, SOON_S, LATER, LATER_S = 1.10, 1.0, 1.03, 3.0
"""Asked: period over bound at most, of all cases and of equal devices, and the time limits."""


def run(quick: bool, data: Path | None) -> Part:
    warm_up()
    seeds = range(1, 2) if quick else range(1, 6)
    rows, bars, values = [], list[Bar](), dict[str, Any]()
    for blocks, devices, in_flight, equal in CASES[:5] if quick else CASES:
        kind = "equal" if equal else "unequal"
        name = f"{blocks} blocks, {devices} {kind} devices, {in_flight} in flight"

        def make(
            seed: int, b: int = blocks, d: int = devices, m: int = in_flight, e: bool = equal
        ) -> Loop:
            return pipeline(seed, b, d, m, equal=e)

        for most, seconds in ((SOON, SOON_S), *([(LATER, LATER_S)] if equal else [])):
            label = f"{name}, {seconds:g} s"
            worth, values[label] = against_bounds(make, seconds, seeds)
            bars.append(at_most(f"{label}: over bound", worth, most, "{:.4f}"))
            cpu = statistics.median(k["cpu_s"] for k in values[label])
            rows.append([label, f"{worth:.4f}", f"{cpu:.2f}"])
    left_out = ["pipelines of more than 12 blocks, four of five seeds"] if quick else []
    return Part(
        "pipelines", ["pipeline", "median over bound", "CPU, s"], rows, bars, left_out, values
    )
