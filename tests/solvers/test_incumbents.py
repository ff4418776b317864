"""Each better plan is told while the search goes on, and the returned one at the end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pearl import CostTable, Device, Mode, Plan, Platform, Task, TaskGraph, solve
from pearl.planning.problem import Problem
from pearl.testing.graphs import random_limited
from pearl.verification import check_plan


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("milp", "throughput"),
        ("milp", "power_efficiency"),
        ("milp", "robust"),
        ("tabu", "makespan"),
        ("cpsat", "makespan"),
        ("heft", "throughput"),
    ],
)
def test_plans_get_better_and_the_last_is_the_returned_one(method: str, objective: str) -> None:
    if method == "cpsat":
        pytest.importorskip("ortools")
    for seed in (1, 4, 6):
        graph, costs, limits = random_limited(seed, most_tasks=5)
        told: list[Plan] = []
        plan = solve(
            graph,
            costs,
            limits=limits,
            method=method,
            objective=objective,
            time_limit_s=3,
            on_incumbent=told.append,
        )
        assert told[-1] == plan
        sign = 1 if objective == "makespan" else -1
        values = [sign * p.value for p in told]
        assert all(b <= a * (1 + 1e-9 * sign) for a, b in pairwise(values))
        for p in told:
            check_plan(p, Problem(graph, costs, limits, p.objective))


def test_a_search_tells_before_it_ends() -> None:
    told: list[Plan] = []
    graph, costs, limits = random_limited(4)
    solve(graph, costs, limits=limits, on_incumbent=told.append)
    assert len(told) > 1
    assert told[0].status == "time_limit"


def test_what_the_function_raises_is_raised() -> None:
    graph = TaskGraph("one", (Task("a"),), ())
    costs = CostTable(Platform("p", (Device("cpu"),)), (Mode.of("a", "cpu", 1.0),))

    def refuse(plan: Plan) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match=r"^enough$"):
        solve(graph, costs, on_incumbent=refuse)
