"""List schedulers beside each other: a part of `python -m benchmarks.solver`.

Makespans of single iterations from 300 tasks on. `round robin` pins task i to device i mod n, in
topological order, and orders by HEFT. Times are CPU-seconds of the whole solve in this process,
the least of some runs, with bounds left to the relaxation that all of these methods share.

Modulo scheduling (`pearl.solvers.large.loop_search`) makes periods short. A task without work that
waits for all others, and that all others wait for in the next iteration, makes the period the
makespan. The search has a time for its steps, so that it is shown with several.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import networkx as nx

from benchmarks.bars import Bar, Part
from benchmarks.solver.instances import blocks, branches, large
from examples import linear_clustering, lshs, peft
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl.solvers.large.loop_search import LoopSearch
from pearl.solvers.makespan import heft
from pearl.solvers.model.dag_instance import build_instance, makespan_spaces
from pearl.solvers.model.search_space import search_spaces
from pearl_devices import Kernel
from pearl_estimators import Estimate

METHODS = {
    "heft": heft.schedule,
    "peft": peft.schedule,
    "lshs": lshs.schedule,
    "linear clustering": linear_clustering.schedule,
}

STEPS_S = (0.1, 1.0, 5.0)
"""CPU-seconds of steps of modulo scheduling."""

SAME = 1.01
"""Factor within which two makespans count as equal."""

RUNS = 3


def scheduled(name: str, case: tuple[TaskGraph, CostTable]) -> tuple[float, float]:
    """The makespan of a method in seconds, infinite if a task found no place, and the CPU-seconds
    that the schedule took, the least of some runs."""
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
    return found.cost if found else math.inf, min(spent)


def in_turn(case: tuple[TaskGraph, CostTable]) -> tuple[TaskGraph, CostTable]:
    """The problem whose iterations follow one another without overlap."""
    graph, costs = case
    ends = {e.src for e in graph.edges}, {e.dst for e in graph.edges}
    edges = [Edge(t.name, "turn") for t in graph.tasks if t.name not in ends[0]]
    edges += [Edge("turn", t.name, tokens_seq=1) for t in graph.tasks if t.name not in ends[1]]
    able = dict.fromkeys(m.device for m in costs.modes)
    modes = [Mode(("turn",), d, "v", 1, Estimate(0.0, 0.0, 0.0, 0.0, 0.0)) for d in able]
    turn = Task("turn", Kernel("turn"))
    graph = replace(graph, tasks=(*graph.tasks, turn), edges=(*graph.edges, *edges))
    return graph, replace(costs, modes=(*costs.modes, *modes))


def modulo(steps_s: float, case: tuple[TaskGraph, CostTable]) -> tuple[float, float]:
    """The makespan of modulo scheduling in seconds, and its CPU-seconds."""
    (space,) = search_spaces(Problem(*in_turn(case)))
    begin = time.process_time()
    search = LoopSearch(space, 0)
    search.run(steps_s)
    found = search.orders()
    return found[2] if found else math.inf, time.process_time() - begin


Figures = dict[str, tuple[float, float]]
"""Method → makespan in seconds, CPU-seconds."""


def rows_won(kept: dict[str, Figures], name: str) -> list[str]:
    """The graphs on which a method has a better makespan than all list schedulers, and than modulo
    scheduling of no more CPU-seconds, or is the quickest of those with the best makespan."""
    won = []
    for title, figures in kept.items():
        cost, seconds = figures[name]
        others = {n: f for n, f in figures.items() if n != name}
        least = min(c for n, (c, s) in others.items() if s <= seconds or "modulo" not in n)
        as_good = [s for c, s in others.values() if c <= cost * SAME]
        if cost * SAME < least or (cost <= least * SAME and seconds < min(as_good)):
            won.append(title)
    return won


def run(quick: bool, data: Path | None) -> Part:
    cases: dict[str, tuple[TaskGraph, CostTable]] = {}
    for scale in (1,) if quick else (1, 3):
        cases |= {
            f"Xᵀ Y, {100 * scale} blocks, 4 devices": blocks("product", 100 * scale, 4),
            f"logistic gradient, {64 * scale} blocks, 8 devices": blocks("gradient", 64 * scale, 8),
            f"4 branches of {80 * scale} tasks, 4 lanes": branches(4, 80 * scale, 4),
            f"layered, {320 * scale} tasks, 8 devices, copies 1": large(
                0, 1.0, tasks=320 * scale, devices=8, shape="layered"
            ),
        }
    rows, kept = [], dict[str, Figures]()
    scheduled("heft", branches(2, 2, 2))  # loads what all of them use
    modulo(0.1, branches(4, 10, 4))
    for title, case in cases.items():
        kept[title] = {name: scheduled(name, case) for name in (*METHODS, "round robin")}
        kept[title] |= {f"modulo scheduling, {s:g} s": modulo(s, case) for s in STEPS_S}
        for name, (cost, seconds) in kept[title].items():
            written = "no place" if cost == math.inf else f"{cost:.3f}"
            rows.append([title, name, written, f"{seconds:.3f}"])
    won = {name: rows_won(kept, name) for name in ("lshs", "linear clustering")}
    lshs_won = "; ".join(won["lshs"])
    return Part(
        "list schedulers: makespan of one iteration",
        ["graph", "method", "makespan, s", "CPU, s"],
        rows,
        [Bar("lshs wins a row", lshs_won or "none", "a row", bool(lshs_won))],
        values={"makespans": kept, "won": won},
    )
