"""Firings of 0 s: plans and bounds against enumeration, and a job shop by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.io import read_fjsp
from pearl.planning.costs import CostTable
from pearl.solvers.makespan import cpsat
from pearl.testing.graphs import SHAPES, devices, mode, random_limited, star, tasks

WITH_CPSAT = pytest.mark.skipif(not cpsat.installed(), reason="needs the extra cpsat")


@WITH_CPSAT
def test_a_firing_of_no_time_needs_its_machine_free(tmp_path: Path) -> None:
    """Machine 2 runs 10, 2 and 2 s, and with 3 s before that no order ends before 14 s. If firings
    of 0 s ran beside others, 13 s would do."""
    rows = ("3 3", "3 1 2 10 1 3 0 1 1 0", "3 1 3 2 1 2 0 1 1 3", "3 1 3 3 1 2 0 1 1 2")
    (tmp_path / "shop.fjs").write_text("\n".join(rows))
    plan = solve(*read_fjsp(tmp_path / "shop.fjs"), objective="makespan")
    assert (plan.value, plan.status) == (14.0, "optimal")


@WITH_CPSAT
def test_a_firing_of_no_time_needs_one_of_equal_lanes_free() -> None:
    """p (1 s), z (0 s) and q (3 s) follow each other; x and y take 4 s beside z on one of two
    lanes. So y waits for z until 1 s; beside both, z would be at 1 s and all over at 4 s."""
    some = star((*devices("a", lanes=2, width=2), *devices("b", lanes=1, width=1)))
    on = {"p": ("b", 1.0), "z": ("a", 0.0), "q": ("b", 3.0), "x": ("a", 4.0), "y": ("a", 4.0)}
    graph = TaskGraph("g", tasks(*on), (Edge("p", "z"), Edge("z", "q")))
    costs = CostTable(some, tuple(mode(t, d, s) for t, (d, s) in on.items()))
    plan = solve(graph, costs, objective="makespan")
    assert (plan.value, plan.status) == (5.0, "optimal")


def with_zeros(seed: int) -> tuple[TaskGraph, CostTable, Limits]:
    """A random problem in which half of the tasks take no time, or keep a lane for none."""
    shape = SHAPES[seed % len(SHAPES)]
    sizes = {"most_tasks": 4, "most_devices": 2, "rates": seed % 3 == 0}
    graph, costs, limits = random_limited(seed, shape=shape, **sizes)  # type: ignore[arg-type]
    r = random.Random(seed)
    zero = {t.name for t in graph.tasks if r.random() < 0.5}
    modes = []
    for m in costs.modes:
        if set(m.tasks) <= zero:
            none = dict.fromkeys(("occupancy_s", "latency_s", "low_s", "high_s"), 0.0)
            few = none if r.random() < 0.8 else {"occupancy_s": 0.0}
            m = replace(m, estimate=replace(m.estimate, **few))
        modes.append(m)
    return graph, replace(costs, modes=tuple(modes)), limits


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", ["throughput", "power_efficiency", "makespan"])
def test_plans_with_firings_of_no_time_agree_with_enumeration(objective: str) -> None:
    if objective == "makespan" and not cpsat.installed():
        pytest.skip("needs the extra cpsat")
    compared = 0
    for seed in range(24):
        graph, costs, limits = with_zeros(seed)
        if objective == "makespan":
            limits = replace(limits, power_w=None, period_s=None, min_throughput_per_s=None)
        values: list[float | str | None] = []
        for method in ("pearl.testing.exhaustive", None):
            try:
                plan = solve(graph, costs, objective=objective, limits=limits, method=method)
                values.append(plan.value if plan.status == "optimal" else None)
            except (InfeasibleError, SpecError) as error:  # none within the limits, or all take 0 s
                values.append(type(error).__name__)
        least, found = values
        if isinstance(least, float):
            assert found == pytest.approx(least, rel=1e-6), seed
            compared += 1
        else:
            assert found == least or least is None, seed
    assert compared > 12
