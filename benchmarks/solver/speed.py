"""Small problems to proof: a part of `python -m benchmarks.solver`.

Rings with chords of `instances.small`, 8 tasks on 6 devices with 4 modes each, solved one after the
other in one process. Beside each a linear program of fixed size is solved by HiGHS, so that the
ratio of the two can be compared between machines, and on one that is busy. Smaller and larger rings
show how the cost grows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from benchmarks.bars import Bar, Part, at_most
from benchmarks.solver.instances import small
from pearl import solve
from pearl.planning.problem import Problem
from pearl.verification import check_plan

MEDIAN_S, WORST_S = 0.3, 2.0
"""Asked: wall-clock seconds to proof."""

SECONDS = 60.0
"""Time limit of one solve: a problem not proven by then counts with it."""

ROWS, COLUMNS = 300, 600
"""Size of the linear program beside; under a tenth of a second here."""

SIZES = (4, 6, 10, 12, 14)
"""Tasks of the further rings, on 6 devices with 4 modes."""


def yardstick() -> Callable[[], tuple[float, float]]:
    """Solves the linear program: (wall, CPU) seconds."""
    r = np.random.default_rng(0)
    matrix = r.uniform(0.0, 1.0, (ROWS, COLUMNS)) * (r.uniform(size=(ROWS, COLUMNS)) < 0.1)
    matrix[:, 0] += 1.0
    cost, most = -r.uniform(0.5, 1.0, COLUMNS), r.uniform(0.5, 1.0, ROWS) * COLUMNS * 0.01

    def run() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        result = linprog(cost, A_ub=matrix, b_ub=most, bounds=(0.0, 1.0), method="highs-ds")
        assert result.status == 0, result.message
        return time.perf_counter() - wall, time.process_time() - cpu

    return run


def timed(seed: int, tasks: int) -> tuple[bool, float, float]:
    """Whether a ring was solved to proof, wall and CPU seconds."""
    graph, costs = small(seed, tasks=tasks)
    wall, cpu = time.perf_counter(), time.process_time()
    plan = solve(graph, costs, time_limit_s=SECONDS)
    took = time.perf_counter() - wall, time.process_time() - cpu
    check_plan(plan, Problem(graph, costs))
    return plan.status == "optimal", *took


def _figures(seconds: list[float]) -> list[str]:
    ranked = sorted(seconds)
    figures = statistics.median(ranked), ranked[int(0.9 * (len(ranked) - 1))], ranked[-1]
    return [f"{s:.3f}" for s in figures]


def run(quick: bool, data: Path | None) -> Part:
    measure = yardstick()
    timed(10_000, 8)  # loads what is imported on use
    measure()
    runs: dict[int, list[tuple[bool, float, float]]] = {}
    beside: list[tuple[float, float]] = []
    counts = {8: 12 if quick else 50}
    if not quick:
        counts |= dict.fromkeys(SIZES, 15)
    for tasks, count in sorted(counts.items()):
        for seed in range(count):
            runs.setdefault(tasks, []).append(timed(seed, tasks))
            beside.append(measure())
    lp_wall, lp_cpu = (statistics.median(b[k] for b in beside) for k in (0, 1))
    rows = []
    for size, results in runs.items():
        wall, cpu = [r[1] for r in results], [r[2] for r in results]
        proven = f"{sum(r[0] for r in results)} of {len(results)}"
        ratio = f"{statistics.median(cpu) / lp_cpu:.2f}, {max(cpu) / lp_cpu:.2f}"
        rows.append([f"{size} × 6 × 4", proven, *_figures(wall), *_figures(cpu), ratio])
    count = sum(r[0] for r in runs[8])
    wall, cpu = [r[1] for r in runs[8]], [r[2] for r in runs[8]]
    beside_text = f"linear program beside: {lp_wall:.3f} s, {lp_cpu:.3f} s of CPU"
    spent = f"({statistics.median(cpu):.3f} s of CPU, worst {max(cpu):.3f}; {beside_text})"
    bars = [
        Bar("8 × 6 × 4: proven optimal", str(count), str(len(wall)), count == len(wall)),
        at_most(
            f"8 × 6 × 4: median to proof {spent}", statistics.median(wall), MEDIAN_S, "{:.3f} s"
        ),
        at_most("8 × 6 × 4: worst to proof", max(wall), WORST_S, "{:.3f} s"),
    ]
    columns = ["tasks × devices × modes", "proven", "wall, s: median", "90 %", "worst"]
    columns += ["CPU, s: median", "90 %", "worst", "CPU over LP: median, worst"]
    left_out = [f"{50 - counts[8]} of the 50 problems, and rings of other sizes"] if quick else []
    return Part(
        "small problems to proof",
        columns,
        rows,
        bars,
        left_out,
        {
            "linear_program": {"wall_s": lp_wall, "cpu_s": lp_cpu, "shape": [ROWS, COLUMNS]},
            "to_proof": {
                str(size): [{"proven": p, "wall_s": w, "cpu_s": c} for p, w, c in results]
                for size, results in runs.items()
            },
        },
    )
