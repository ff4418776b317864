"""Compilation of the searches that a problem needs, unless this machine has compiled them before.

`solve` does this before its time limit starts, so the first solve on a new machine has as much time
as later ones. Small problems use no compiled search.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from pearl.graph.cycle_ratio import COMPILED_ARCS, howard
from pearl.graph.period import ITERATIONS, simulate
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.rooms import use_room
from pearl.solvers.methods.simple_plans import gather, read_seconds
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.model.tables import to_places
from pearl.solvers.model.traits import has_large
from pearl.solvers.orders.lane_sequencing import MANY, best_orders
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

MAKESPAN = "pearl.solvers.makespan.first_use:compile_tabu"
"""What compiles the search of makespan. Its room may be left out."""

STEPPED_S = 0.1
"""CPU-seconds of the search of loops in the tiny problem: enough to run each of its branches."""


def compile_searches(problem: Problem) -> None:
    """Run the compiled searches that a problem may use on a tiny problem, unless their machine code
    is cached on this machine. Compilation takes some seconds."""
    firings = sum(problem.graph.repetition.values())
    if problem.objective == "makespan":
        use_room(MAKESPAN, "objective makespan")(firings)
    elif firings >= MANY:
        from pearl.solvers.orders import modulo

        if not is_compiled(modulo.fit):
            _search_period()


def is_compiled(function: Any) -> bool:
    """Return whether the function was called in this process, or its machine code is cached."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    kept = getattr(function, "stats", None)  # None if functions are interpreted
    return (
        kept is None
        or bool(function.signatures)
        or any(Path(str(kept.cache_path)).glob(f"{name}-*.nbi"))
    )


def _search_period() -> None:
    """Run policy iteration, simulation, the searches for many tasks and that of lane orders."""
    (space,) = search_spaces(tiny_problem("throughput"))
    if has_large():
        _search_large(space)
    else:
        first = next(gather(space, read_seconds))
        best_orders(build_timed_graph(first), nodes=1)
    ring = [(i, (i + 1) % COMPILED_ARCS, 1.0, 1) for i in range(COMPILED_ARCS)]
    howard(COMPILED_ARCS, ring)
    simulate(COMPILED_ARCS, ring, ITERATIONS)


def _search_large(space: SearchSpace) -> None:
    """Run annealing of loads and the search of loops with the bound of chains."""
    from pearl.solvers.large.load_annealing import Annealing
    from pearl.solvers.large.loop_search import LoopSearch
    from pearl.solvers.large.starts import greedy

    loops = LoopSearch(space, 0)
    loops.run(STEPPED_S)
    if loops.best is not None:
        loops.step(loops.best.place)  # `run` makes no step if the first plan is the best
    (few,) = search_spaces(tiny_problem("throughput", 3))
    next(LoopSearch(few, 0).every(), None)
    loads = to_places(space, even=True)
    start = greedy(loads)
    if start is not None:
        Annealing(loads, start, 0, math.inf, runs=0).run()
        best_orders(build_timed_graph(loads.assignment(start)), nodes=1)


def tiny_problem(objective: str, count: int = MANY) -> Problem:
    """Return a ring of tasks on two devices. count: as many as most compiled searches need."""
    names = [f"t{i}" for i in range(count)]
    edges = [Edge(a, b, bytes=1.0) for a, b in pairwise(names)]
    graph = TaskGraph(
        "first use",
        tuple(Task(n, Kernel(n)) for n in names),
        (*edges, Edge(names[-1], names[0], tokens_seq=3, bytes=1.0)),
    )
    platform = Platform(
        "two",
        (Device("a", "null"), Device("b", "null")),
        (Link("a", "b", 0.1, 10.0, paid_by="nobody"),),
    )
    modes = [
        Mode((n,), d, "v", 1, Estimate(s, s, s, s, 0.0))
        for i, n in enumerate(names)
        for d, s in (("a", 1.0 + i % 3), ("b", 1.0 + i % 4))
    ]
    return Problem(graph, CostTable(platform, tuple(modes)), objective=objective)
