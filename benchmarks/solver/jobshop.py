"""Makespan on flexible job shops: Brandimarte's mk01–mk10, Kacem's k1–k4, Fattahi's sfjs01–sfjs10.

Machines are devices with one lane, operations tasks, jobs chains of edges. Every instance is solved
with `pearl.solve(objective="makespan")` and the time limit that the bar names; beside it stands
HEFT alone. Best known makespans are those of ScheduleOpt/benchmarks (August 2026). The folder
`flexible_jobshop` of the data has the files; `pearl.io.read_fjsp` reads them.
"""

from __future__ import annotations

import math
import statistics
import time
from operator import truediv
from pathlib import Path

from benchmarks.bars import AbsentError, Bar, Part, at_most
from pearl import solve
from pearl.io import read_fjsp
from pearl.planning.problem import Problem
from pearl.verification import check_plan

BEST_KNOWN = {
    "Brandimarte": dict(
        zip(
            (f"mk{i:02d}" for i in range(1, 11)), (40, 26, 204, 60, 172, 57, 139, 523, 307, 193),
            strict=True,
        ),
    ),
    "Kacem": dict(zip(("k1", "k2", "k3", "k4"), (11, 11, 7, 11), strict=True)),
    "Fattahi": dict(
        zip(
            (f"sfjs{i:02d}" for i in range(1, 11)),
            (66, 107, 221, 355, 119, 320, 397, 253, 210, 516), strict=True,
        ),
    ),
}  # fmt: skip
"""Set → instance → best known makespan; all are optimal but mk06 and mk10 of Brandimarte's."""

TIME_LIMIT_S = 10.0

QUICK = ("mk01", "mk04", "k1", "k2", "k3", *(f"sfjs{i:02d}" for i in range(1, 11)))
"""What --quick solves: those that take under a second each."""


def run(quick: bool, data: Path | None) -> Part:
    """The table and its bars; AbsentError without the data."""
    folder = data / "flexible_jobshop" if data else None
    if folder is None or not folder.is_dir():
        raise AbsentError("the folder flexible_jobshop: give its parent with --data or PEARL_DATA")
    rows: list[list[str]] = []
    values: list[dict[str, float | str]] = []
    for family, known in BEST_KNOWN.items():
        for name, best in known.items():
            if quick and name not in QUICK:
                continue
            graph, costs = read_fjsp(folder / f"{name}.txt")
            heft = solve(graph, costs, objective="makespan", method="heft")
            wall, cpu = time.perf_counter(), time.process_time()
            plan = solve(graph, costs, objective="makespan", time_limit_s=TIME_LIMIT_S)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            check_plan(plan, Problem(graph, costs))
            values.append(
                {
                    "family": family, "instance": name, "best_known": best, "makespan": plan.value,
                    "bound": plan.bound_value, "heft": heft.value, "method": plan.method,
                    "status": plan.status, "wall_s": wall, "cpu_s": cpu,
                },
            )  # fmt: skip
            rows.append(
                [
                    name, str(len(graph.tasks)), str(best), f"{plan.value:g}",
                    f"{plan.value / best - 1:.1%}", f"{plan.bound_value:.6g}", plan.status,
                    f"{heft.value:g}", f"{heft.value / best - 1:.1%}", f"{wall:.1f}", f"{cpu:.1f}",
                ],
            )  # fmt: skip

    def of(family: str, key: str) -> list[float | str]:
        return [v[key] for v in values if v["family"] == family]

    def optimal(family: str, *statuses: str) -> int:
        mine = [
            v
            for v in values
            if v["family"] == family and v["status"] in (statuses or [v["status"]])
        ]
        return sum(math.isclose(float(v["makespan"]), float(v["best_known"])) for v in mine)

    left_out, bars = [], []
    if quick:
        kacem = f"{optimal('Kacem')} of {len(of('Kacem', 'makespan'))} solved here"
        left_out += ["Brandimarte: mean and worst above best known"]
        left_out += [f"Kacem: the optimum on all ({kacem})"]
    else:
        above = list(map(truediv, of("Brandimarte", "makespan"), of("Brandimarte", "best_known")))
        mean, worst = statistics.fmean(above) - 1, max(above) - 1
        bars = [
            at_most("Brandimarte, mean above best known", mean, 0.02, "{:.2%}"),
            at_most("Brandimarte, worst above best known", worst, 0.1, "{:.2%}"),
            Bar("Kacem at the optimum", f"{optimal('Kacem')} of 4", "4", optimal("Kacem") == 4),
        ]
    proved = optimal("Fattahi", "optimal")
    bars.append(Bar("Fattahi at the optimum, proved", f"{proved} of 10", "10", proved == 10))
    columns = ["instance", "operations", "best known", "makespan", "above", "bound", "status"]
    columns += ["HEFT", "above", "wall s", "CPU s"]
    title = f"flexible job shops, {TIME_LIMIT_S:g} s each"
    return Part(title, columns, rows, bars, left_out, {"instances": values})
