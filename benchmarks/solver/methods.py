"""List schedulers beside each other: a part of `python -m benchmarks.solver`.

Makespans of single iterations from 300 tasks on. `round robin` pins task i to device i mod n, in
topological order, and orders by HEFT. Times are CPU-seconds of the whole solve in this process,
the least of some runs, with bounds left to the relaxation that all of these methods share.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import networkx as nx

from benchmarks.bars import Bar, Part
from benchmarks.solver.instances import blocks, branches, large
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.methods import heft, linear_clustering, lshs, peft
from pearl.solvers.model.dag_instance import build_instance, makespan_spaces
from pearl.solvers.model.result import Candidate

METHODS = {
    "heft": heft.schedule,
    "peft": peft.schedule,
    "lshs": lshs.schedule,
    "linear_clustering": linear_clustering.schedule,
}

OTHERS = ("heft", "peft", "round robin")
"""What the others are held against: by makespan, and by time where makespans are equal."""

SAME = 1.01
"""Factor within which two makespans count as equal."""

RUNS = 3


def scheduled(name: str, case: tuple[TaskGraph, CostTable]) -> tuple[Candidate | None, float]:
    """The schedule of a method, and the CPU-seconds that it took, the least of some runs."""
    graph, costs = case
    limits = Limits()
    if name == "round robin":
        order = list(nx.topological_sort(nx.DiGraph([(e.src, e.dst) for e in graph.edges])))
        able = {m.device for m in costs.modes}
        devices = [d.name for d in costs.platform.devices if d.name in able]
        limits = replace(limits, pin={t: devices[i % len(devices)] for i, t in enumerate(order)})
    (space,) = makespan_spaces(Problem(graph, costs, limits, "makespan"))
    schedule = METHODS.get(name, heft.schedule)
    spent, found = [], None
    for _ in range(RUNS):
        begin = time.process_time()
        found = schedule(build_instance(space))
        spent.append(time.process_time() - begin)
    return found, min(spent)


def run(quick: bool, data: Path | None) -> Part:
    scale = 1 if quick else 3
    cases = {
        f"Xᵀ Y, {100 * scale} blocks, 4 devices": blocks("product", 100 * scale, 4),
        f"logistic gradient, {64 * scale} blocks, 8 devices": blocks("gradient", 64 * scale, 8),
        f"4 branches of {80 * scale} tasks, 4 lanes": branches(4, 80 * scale, 4),
        f"layered, {320 * scale} tasks, 8 devices, copies 1": large(
            0, 1.0, tasks=320 * scale, devices=8, shape="layered"
        ),
    }
    names = [*METHODS, OTHERS[-1]]
    rows, won = [], dict.fromkeys(("lshs", "linear_clustering"), "")
    scheduled("heft", branches(2, 2, 2))  # loads what all of them use
    for title, case in cases.items():
        found = {name: scheduled(name, case) for name in names}
        costs = {n: c.cost for n, (c, _) in found.items() if c}
        for name in names:
            cost, seconds = costs.get(name), found[name][1]
            written = "no place" if cost is None else f"{cost:.3f}"
            rows.append([title, name, written, f"{seconds:.3f}"])
        others = {n: costs[n] for n in OTHERS if n in costs}
        least = min(others.values())
        quickest_s = min(found[n][1] for n in others if others[n] <= least * SAME)
        for name in won:
            cost, seconds = costs.get(name, math.inf), found[name][1]
            if cost * SAME < least or (cost <= least * SAME and seconds < quickest_s):
                won[name] = title
    bars = [
        Bar(f"{name} wins a row", won[name] or "none", "a row", bool(won[name])) for name in won
    ]
    return Part(
        "list schedulers: makespan of one iteration",
        ["graph", "method", "makespan, s", "CPU, s"],
        rows,
        bars,
    )
