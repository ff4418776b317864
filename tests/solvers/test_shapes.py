"""Graphs of every shape: no bound is beaten, and parts that no cycle joins run side by side."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise

import pytest

from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.solvers import METHODS
from pearl.testing.graphs import SHAPES, devices, mode, random_limited, star

METHODS_OF = {
    objective: [name for name, m in METHODS.items() if objective in m.objectives]
    for objective in ("throughput", "power_efficiency", "makespan")
}


def chain(*firings: int, names: str = "ab") -> tuple[TaskGraph, CostTable]:
    """Tasks with a state, each feeding the next, that fire so often in an iteration, 1 s each;
    devices of one lane."""
    tasks = [f"t{i}" for i in range(len(firings))]
    edges = [Edge(t, t, tokens_seq=1) for t in tasks]
    for i, (q, k) in enumerate(pairwise(firings)):
        least = math.lcm(q, k)
        edges.append(Edge(tasks[i], tasks[i + 1], least // q, least // k))
    graph = TaskGraph("chain", tuple(Task(t) for t in tasks), tuple(edges))
    modes = tuple(mode(t, d, 1.0) for t in tasks for d in names)
    return graph, CostTable(star(devices(*names, lanes=1)), modes)


@pytest.mark.parametrize(
    ("firings", "period_s"), [((2, 3), 3.0), ((2, 1, 2), 3.0), ((2, 1, 2, 1), 3.0)]
)
def test_iterations_of_a_chain_overlap(firings: tuple[int, ...], period_s: float) -> None:
    """The second task works on one iteration while the first works on the next, so the period is
    the larger load of two devices. One after the other, 2 + 3 firings would take 5 s."""
    graph, costs = chain(*firings)
    plan = solve(graph, costs)
    assert plan.status == "optimal"
    assert plan.period_s == pytest.approx(period_s)


def test_a_period_that_needs_overlap_is_no_conflict() -> None:
    graph, costs = chain(2, 3)
    assert solve(graph, costs, limits=Limits(period_s=3.05)).period_s <= 3.05
    with pytest.raises(InfeasibleError, match="shortest reachable is at least 3 s"):
        solve(graph, costs, limits=Limits(period_s=2.95))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", METHODS_OF)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_bound_of_a_method_is_beaten_by_another_method(shape: str, objective: str) -> None:
    for seed in range(4):
        graph, costs, limits = random_limited(seed, most_tasks=4, most_devices=3, shape=shape)
        if objective == "makespan":
            limits = Limits()
        plans = {}
        for method in METHODS_OF[objective]:
            with suppress(InfeasibleError):
                plans[method] = solve(
                    graph, costs, objective=objective, method=method, limits=limits
                )
        assert len(plans) in (0, len(METHODS_OF[objective])), seed
        for method, plan in plans.items():
            for other, better in plans.items():
                if objective == "makespan":
                    assert better.value >= plan.bound_value * (1 - 1e-6), (method, other, seed)
                else:
                    assert better.value <= plan.bound_value * (1 + 1e-6), (method, other, seed)
