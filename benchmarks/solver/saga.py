"""Makespan beside SAGA's schedulers on instances of SAGA's own generators (PyPI `anrg-saga`).

SAGA runs in a process of its own (`benchmarks.saga_peer`), by the interpreter that the environment
variable PEARL_PEER_PYTHON names, else by this one. Its cost model is that of related machines: a
task takes cost / speed of its node, data between two nodes size / speed of their edge, and messages
never wait for one another, which is a link paid by nobody here. Within a node SAGA charges size /
1e9 or less, we nothing. The measure of an instance is our makespan over the best valid one of all
its polynomial schedulers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bars import AbsentError, Bar, Part
from pearl import solve
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plan_validation import check_plan
from pearl.planning.problem import Problem
from pearl.solvers.solver import default_method
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

SEEDS = range(5)
TIME_LIMIT_S = 5.0
MEAN, WORST = 1.00, 1.02
ROUNDING = 1e-6
"""Between two makespans that are equal but for rounding and SAGA's transfers within a node."""


def related(row: dict[str, Any]) -> tuple[TaskGraph, CostTable]:
    """One of SAGA's instances as graph and costs: seconds are cost / speed."""
    graph = TaskGraph(
        row["name"],
        tuple(Task(name, Kernel("task")) for name, _ in row["tasks"]),
        tuple(Edge(src, dst, bytes=size) for src, dst, size in row["dependencies"]),
    )
    platform = Platform(
        "network",
        tuple(Device(name, "null") for name, _ in row["nodes"]),
        tuple(Link(a, b, 0.0, speed, paid_by="nobody") for a, b, speed in row["edges"]),
    )
    modes = tuple(
        Mode((task,), node, "run", 1, Estimate(cost / speed))
        for task, cost in row["tasks"]
        for node, speed in row["nodes"]
    )
    return graph, CostTable(platform, modes)


def peer(seeds: list[int]) -> dict[str, Any]:
    """What `benchmarks.saga_peer` answers; AbsentError where its interpreter has no SAGA."""
    python = os.environ.get("PEARL_PEER_PYTHON", sys.executable)
    script = Path(__file__).parents[1] / "saga_peer.py"  # not beside a module of SAGA's name
    try:
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps({"seeds": seeds}),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # SAGA breaks ties in the order of sets
        )
    except OSError as error:
        raise AbsentError(f"the interpreter {python} (PEARL_PEER_PYTHON): {error}") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        if "ModuleNotFoundError" in last:
            raise AbsentError(
                f"anrg-saga for {python} ({last}): install it there, or name an interpreter that "
                "has it with PEARL_PEER_PYTHON"
            ) from None
        raise RuntimeError(f"SAGA's side failed: {last}") from None
    return dict(json.loads(done.stdout))


def run(quick: bool, data: Path | None) -> Part:
    """The table and its bars; AbsentError without SAGA."""
    answer = peer(list(SEEDS)[: 1 if quick else None])
    rows: list[list[str]] = []
    values: list[dict[str, Any]] = []
    method = default_method("makespan")
    for row in answer["instances"]:
        theirs = {k: v for k, v in row["makespans"].items() if not isinstance(v, str)}
        best = min(theirs, key=lambda k: theirs[k])
        graph, costs = related(row)
        heft = solve(graph, costs, objective="makespan", method="heft")
        wall = time.perf_counter()
        plan = solve(graph, costs, objective="makespan", time_limit_s=TIME_LIMIT_S)
        wall = time.perf_counter() - wall
        check_plan(plan, Problem(graph, costs))
        values.append(
            {
                "instance": row["name"],
                "ratio": plan.value / theirs[best],
                "heft_ratio": heft.value / theirs[best],
                "their_heft_ratio": theirs["Heft"] / theirs[best] if "Heft" in theirs else None,
                "makespan": plan.value,
                "bound": plan.bound_value,
                "status": plan.status,
                "theirs": theirs,
                "not_valid": {k: v for k, v in row["makespans"].items() if isinstance(v, str)},
                "wall_s": wall,
            }
        )
        rows.append(
            [
                row["name"],
                str(len(graph.tasks)),
                str(len(row["nodes"])),
                f"{best} {theirs[best]:.4f}",
                f"{plan.value:.4f}",
                f"{plan.value / theirs[best]:.3f}",
                plan.status,
                f"{heft.value / theirs[best]:.3f}",
                f"{theirs['Heft'] / theirs[best]:.3f}" if "Heft" in theirs else "–",
                f"{wall:.2f}",
            ]
        )
    ratios = [v["ratio"] for v in values]
    their_heft = [v["their_heft_ratio"] for v in values if v["their_heft_ratio"]]
    alone = [v["heft_ratio"] for v in values]
    rows.append(
        [
            "mean",
            "",
            "",
            "",
            "",
            f"{statistics.fmean(ratios):.3f}",
            "",
            f"{statistics.fmean(alone):.3f}",
            f"{statistics.fmean(their_heft):.3f}",
            "",
        ]
    )
    mean, worst = statistics.fmean(ratios), max(ratios)
    bars = [
        Bar(
            f"mean makespan of {method} over SAGA's best",
            f"{mean:.4f}",
            f"at most {MEAN:.2f}",
            mean <= MEAN + ROUNDING,
        ),
        Bar(
            f"worst makespan of {method} over SAGA's best",
            f"{worst:.4f}",
            f"at most {WORST:.2f}",
            worst <= WORST,
        ),
    ]
    left_out = [f"seeds {SEEDS.start + 1} to {SEEDS.stop - 1}"] if quick else []
    columns = ["instance", "tasks", "nodes", "SAGA's best", "ours", "ratio", "status"]
    columns += ["HEFT alone", "SAGA's HEFT", "wall s"]
    title = f"makespans beside SAGA {answer['version']} ({len(values)} instances)"
    return Part(title, columns, rows, bars, left_out, {"instances": values})
