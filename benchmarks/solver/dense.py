"""Dense graphs without cycles: a part of `python -m benchmarks.solver`.

Layered, random and series-parallel graphs of `instances.large`, 1,000 tasks on 16 devices, each
solved in a process of its own by one worker, so that the CPU-seconds are those of one core. One
run before, which does not count, compiles what the others find compiled.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_most, run_module
from benchmarks.solver.clock import timed
from benchmarks.solver.instances import large

SHAPES = ("layered", "random", "series-parallel")

WITHIN = {1.0: 0.05, 3.0: 0.15}
"""Asked: transfer-to-work ratio → how far below its bound the throughput may be."""

LIMIT_S = 30.0
"""Time limit of a solve, in which one worker spends as many CPU-seconds at most."""

SEEDS = 1


def solved(shape: str, ratio: float, seed: int, tasks: int, limit_s: float) -> dict[str, Any]:
    """Solve in this process. period_s, bound_s: seconds of the model."""
    case = *large(seed, ratio, tasks=tasks, shape=shape), "throughput"
    plan, cpu, wall = timed(case, limit_s)
    return {
        "shape": shape, "ratio": ratio, "seed": seed, "tasks": tasks, "limit_s": limit_s,
        "period_s": plan.period_s, "bound_s": plan.bound_s, "bound_from": plan.bound_from,
        "gap": plan.gap, "cpu_s": cpu, "wall_s": wall,
    }  # fmt: skip


def apart(shape: str, ratio: float, seed: int, tasks: int, limit_s: float) -> dict[str, Any]:
    """Solve in a process of its own."""
    given = [shape, *(str(v) for v in (ratio, seed, tasks, limit_s))]
    found: dict[str, Any] = run_module("dense", "benchmarks.solver.dense", given, env={})
    return found


def run(quick: bool, data: Path | None) -> Part:
    apart("random", 1.0, 0, 60, 1.0)
    tasks, limit_s, seeds = (125, 3.0, 1) if quick else (1_000, LIMIT_S, SEEDS)
    solves = [
        apart(shape, ratio, seed, tasks, limit_s)
        for shape in SHAPES
        for ratio in WITHIN
        for seed in range(seeds)
    ]
    rows = [
        [
            k["shape"], f"{k['ratio']:g}", str(k["seed"]), f"{k['period_s']:.2f}",
            f"{k['bound_s']:.2f}", k["bound_from"], f"{k['gap']:.1%}", f"{k['cpu_s']:.1f}",
            f"{k['wall_s']:.1f}",
        ]
        for k in solves
    ]  # fmt: skip
    bars: list[Bar] = []
    for ratio, asked in WITHIN.items() if not quick else ():
        worst = max(k["gap"] for k in solves if k["ratio"] == ratio)
        bars.append(at_most(f"{tasks} × 16 at ratio {ratio:g}: worst gap", worst, asked, "{:.1%}"))
    most = max(k["cpu_s"] for k in solves)
    bars.append(at_most(f"{tasks} × 16: most CPU", most, 1.1 * limit_s + 0.3, "{:.1f} s"))
    columns = ["shape", "ratio", "seed", "period, s", "bound, s", "bound from", "gap"]
    left_out = ["1,000 tasks and the bars on gaps: 125 tasks in 3 s, one seed, instead"]
    return Part(
        f"dense graphs, {tasks} tasks on 16 devices, limit {limit_s:g} s, one worker",
        [*columns, "CPU, s", "wall, s"],
        rows,
        bars,
        left_out if quick else [],
        {"solves": solves},
    )


if __name__ == "__main__":
    shape, ratio, seed, tasks, limit = sys.argv[1:]
    print(json.dumps(solved(shape, float(ratio), int(seed), int(tasks), float(limit))))
