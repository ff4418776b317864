"""Makespan on flexible job shops: Brandimarte's mk01–mk10, Kacem's k1–k4, Fattahi's sfjs01–sfjs10.

Machines are devices with one lane, operations tasks, jobs chains of edges. Every instance is solved
with `pearl.solve(objective="makespan")` and the time limit that the bar names; beside it stands
HEFT alone. Best known makespans are those of ScheduleOpt/benchmarks (August 2026). The folder
`flexible_jobshop` of the data has the files; `read_jobshop` reads any in their format.
"""

from __future__ import annotations

import math
import statistics
import time
from operator import truediv
from pathlib import Path

from benchmarks.bars import AbsentError, Bar, Part, at_most
from pearl import solve
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plan_validation import check_plan
from pearl.planning.problem import Problem
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

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


def read_jobshop(path: str | Path) -> tuple[TaskGraph, CostTable]:
    """A flexible job shop as a graph with costs: an operation is a task `j0o0`, a machine a device
    `m0` with one lane, a job a chain of edges; machines are joined by links that cost nothing.

    The file: jobs and machines in the first line (what follows there is ignored), then a job a
    line: its number of operations, and for each its number of machines and the pairs machine,
    time. Machines count from 0 or from 1, whichever fits the file. Times become seconds. A
    ValueError says what is wrong with the file.
    """
    lines = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
    try:
        jobs, machines = int(lines[0][0]), int(lines[0][1])
        shop = [_job(line) for line in lines[1 : jobs + 1]]
    except (IndexError, ValueError) as error:
        raise ValueError(f"{path}: not a flexible job shop: {error}") from None
    if len(shop) < jobs:
        raise ValueError(f"{path}: {jobs} jobs announced, {len(shop)} lines found")
    used = {m for job in shop for ways in job for m, _ in ways}
    first = 1 if max(used) == machines else 0
    if min(used) < first or max(used) > machines - 1 + first:
        raise ValueError(f"{path}: machines {min(used)} to {max(used)} used, {machines} announced")
    names = [f"m{k}" for k in range(machines)]
    platform = Platform(
        "machines",
        tuple(Device(n, "null") for n in names),
        tuple(Link(names[0], n, 0.0, 1e18, paid_by="nobody") for n in names[1:]),
    )
    tasks, edges, modes = [], [], []
    for j, job in enumerate(shop):
        for o, ways in enumerate(job):
            name = f"j{j}o{o}"
            tasks.append(Task(name, Kernel("operation")))
            if o:
                edges.append(Edge(f"j{j}o{o - 1}", name))
            modes += [
                Mode((name,), names[m - first], "run", 1, Estimate(seconds)) for m, seconds in ways
            ]
    return TaskGraph(Path(path).stem, tuple(tasks), tuple(edges)), CostTable(platform, tuple(modes))


def _job(line: list[str]) -> list[list[tuple[int, float]]]:
    """The ways (machine, time) of each operation; an IndexError where the line is too short."""
    job, at = [], 1
    for _ in range(int(line[0])):
        count = int(line[at])
        pairs = range(at + 1, at + 1 + 2 * count, 2)
        job.append([(int(line[k]), float(line[k + 1])) for k in pairs])
        at += 1 + 2 * count
    return job


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
            graph, costs = read_jobshop(folder / f"{name}.txt")
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
