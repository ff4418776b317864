"""A thousand tasks on sixteen devices: a part of `python -m benchmarks.solver`.

Graphs of `instances.large`, each solved in a process of its own, so that time and memory are its
own. One run before, which does not count, compiles what the others find compiled.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bars import Bar, Part, run_module
from benchmarks.solver.instances import large
from pearl.planning.problem import Problem

WITHIN = {0.0: 0.02, 1.0: 0.04, 3.0: 0.12}
"""Asked: transfer-to-work ratio → how far above the proven bound a period may be."""

SECONDS = 30.0
"""Asked: wall-clock seconds of a solve on two cores."""

LIMIT_S = 28.5
"""The time limit given to `solve`, which may take a little longer to write its plan down."""

MEMORY_BYTES = 1e9
"""Asked: peak memory of the process, all imports included."""

SEEDS = 3

SIZES = ((62, 16), (125, 16), (250, 16), (500, 16), (1000, 4), (1000, 8))
"""Tasks and devices of the further graphs, at ratio 1, that show how the cost grows."""


@dataclass(frozen=True)
class Solved:
    """One solve: the period and its bound in seconds of the model, and what it took."""

    seed: int
    ratio: float
    tasks: int
    devices: int
    period_s: float
    bound_s: float
    wall_s: float
    cpu_s: float
    peak_bytes: int

    @property
    def above(self) -> float:
        """How far the period is above the bound."""
        return self.period_s / self.bound_s - 1 if self.bound_s > 0 else float("inf")


def solved(seed: int, ratio: float, tasks: int, devices: int, limit_s: float) -> Solved:
    """Solve in this process."""
    from pearl import solve
    from pearl.verification import check_plan

    graph, costs = large(seed, ratio, tasks=tasks, devices=devices)
    wall, cpu = time.perf_counter(), time.process_time()
    plan = solve(graph, costs, time_limit_s=limit_s, seed=seed)
    took = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes()
    check_plan(plan, Problem(graph, costs))
    return Solved(seed, ratio, tasks, devices, plan.period_s, plan.bound_s, *took, peak)


def peak_bytes() -> int:
    """The most memory this process has held."""
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (k for k in status.read_text().splitlines() if k.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def apart(seed: int, ratio: float, tasks: int, devices: int, limit_s: float) -> Solved:
    """Solve in a process of its own."""
    given = [str(v) for v in (seed, ratio, tasks, devices, limit_s)]
    return Solved(**run_module("scale", "benchmarks.solver.scale", given, env={}))


def run(quick: bool, data: Path | None) -> Part:
    apart(0, 1.0, 60, 4, 1.0)
    tasks, limit_s = (125, 3.0) if quick else (1000, LIMIT_S)
    seeds = 1 if quick else SEEDS
    main = [apart(s, ratio, tasks, 16, limit_s) for ratio in WITHIN for s in range(seeds)]
    others = [] if quick else [apart(0, 1.0, t, d, LIMIT_S) for t, d in SIZES]
    rows = [
        [
            f"{k.tasks} × {k.devices}",
            f"{k.ratio:g}",
            str(k.seed),
            f"{k.period_s:.3f}",
            f"{k.bound_s:.3f}",
            f"{k.above:.2%}",
            f"{k.wall_s:.1f}",
            f"{k.cpu_s:.1f}",
            f"{k.peak_bytes / 1e6:.0f}",
        ]
        for k in [*main, *others]
    ]
    bars = []
    for ratio, asked in WITHIN.items() if not quick else ():
        worst = max(k.above for k in main if k.ratio == ratio)
        name = f"1000 × 16 at ratio {ratio:g}: above the bound, worst of {seeds}"
        bars.append(Bar(name, f"{worst:.2%}", f"≤ {asked:.0%}", worst <= asked))
    longest, most = max(k.wall_s for k in main), max(k.peak_bytes for k in main)
    if not quick:
        ok = longest <= SECONDS
        bars.append(Bar("1000 × 16: longest", f"{longest:.1f} s", f"≤ {SECONDS:.0f} s", ok))
    ok = most < MEMORY_BYTES
    bars.append(Bar("most memory", f"{most / 1e6:.0f} MB", f"< {MEMORY_BYTES / 1e6:.0f} MB", ok))
    columns = ["tasks × devices", "ratio", "seed", "period, s", "bound, s", "above"]
    columns += ["wall, s", "CPU, s", "peak, MB"]
    left_out = ["1,000 tasks, and the bars on gap and time: 125 tasks in 3 s instead"]
    return Part(
        "a thousand tasks", columns, rows, bars, left_out if quick else [],
        {"solves": [asdict(k) | {"above": k.above} for k in [*main, *others]]},
    )  # fmt: skip


if __name__ == "__main__":
    seed, ratio, tasks, devices, limit = sys.argv[1:]
    result = solved(int(seed), float(ratio), int(tasks), int(devices), float(limit))
    print(json.dumps(asdict(result)))
