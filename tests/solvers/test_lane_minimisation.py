"""Of plans that cost the same, the one of fewest lanes, then of fewest watts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pearl import InfeasibleError, solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plan_validation import plan_timing, unfold_replicas
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem, split_costs
from pearl.planning.replicas import split_of
from pearl.planning.timing import build_timed_graph
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.testing.graphs import devices, mode, random_limited, star, tasks
from pearl_devices import Platform


def lanes(plan: Plan) -> int:
    return len({t.lane for t in plan.tasks})


def beside(*names: str) -> TaskGraph:
    """`work` and tasks beside it: each may run two firings ahead."""
    edges = [Edge("work", "work", tokens_seq=1)]
    for name in names:
        edges += [
            Edge("work", name),
            Edge(name, "work", tokens_seq=3),
            Edge(name, name, tokens_seq=1),
        ]
    return TaskGraph("beside", tasks("work", *names), tuple(edges))


def test_tasks_that_bound_nothing_share_a_lane() -> None:
    platform = Platform("one", devices("cpu", lanes=6, width=6))
    modes = [mode("work", "cpu", 1e-3), *(mode(n, "cpu", 1e-6) for n in "bcdef")]
    costs = CostTable(platform, tuple(modes))
    plan = solve(beside(*"bcdef"), costs)
    assert plan.period_s == pytest.approx(1e-3, rel=1e-9)
    assert plan.status == "optimal"
    assert lanes(plan) == 2
    assert lanes(solve(beside(*"bcdef"), costs, limits=Limits(max_lanes=1))) == 1


def test_of_plans_as_fast_in_as_many_lanes_one_of_fewest_watts_is_taken() -> None:
    """b is as quick on both boards, and the hungry one comes first."""
    host, *boards = devices("cpu", "hungry", "frugal", lanes=1, active_power_w=100.0)
    watts = {"hungry": 90.0, "frugal": 5.0}
    boards = [replace(d, idle_power_w=watts[d.name], when_unused="off") for d in boards]
    found = [
        mode("work", "cpu", 1e-3),
        mode("b", "hungry", 1e-6, energy=1e-6),
        mode("b", "frugal", 1e-6, energy=2e-6),
    ]
    plan = solve(beside("b"), CostTable(star((host, *boards)), tuple(found)))
    assert plan.period_s == pytest.approx(1e-3, rel=1e-6)
    assert plan.status == "optimal"
    assert plan.task("b").device == "frugal"


@pytest.mark.sweep(3)
@pytest.mark.parametrize("method", ["milp", "heft"])
@pytest.mark.parametrize("seed", range(60, 70))
def test_no_two_lanes_of_a_device_can_be_joined_without_loss(seed: int, method: str) -> None:
    graph, costs, limits = random_limited(seed, most_tasks=5)
    try:
        plan = solve(graph, costs, limits=limits, method=method)
    except InfeasibleError:
        return
    whole, torn = unfold_replicas(plan, graph)
    timed, _ = plan_timing(whole, Problem(torn, split_costs(costs, split_of(torn))))
    a = timed.assignment
    for device in {m.device for m in a.modes}:
        numbers = sorted({n for m, n in zip(a.modes, a.lanes, strict=True) if m.device == device})
        for one, other in itertools.combinations(numbers, 2):
            joined = tuple(
                one if (m.device, n) == (device, other) else n
                for m, n in zip(a.modes, a.lanes, strict=True)
            )
            ordered = best_orders(build_timed_graph(replace(a, lanes=joined)), nodes=60)
            assert ordered.period_s > plan.period_s * (1 + 1e-9)
