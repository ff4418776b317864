"""Both methods keep the contract and agree with each other; metamorphic checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers.methods import enumeration
from pearl.solvers.model.search_space import search_spaces
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.testing.solver_contract import TOLERANCE
from pearl.verification import check_plan
from pearl_estimators import Estimate
from tests.graphs import COUNT, dqn, dqn_costs


def few_plans(most: int, start: int) -> list[tuple[TaskGraph, CostTable]]:
    """COUNT random problems of 4 to `most` assignments."""
    found = []
    seed = start
    while len(found) < COUNT:
        graph, costs = random_problem(seed)
        seed += 1
        try:
            size = enumeration.count(search_spaces(Problem(graph, costs)))
        except InfeasibleError:
            continue
        if 4 <= size <= most:
            found.append((graph, costs))
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", ["throughput", "power_efficiency"])
def test_a_power_cap_and_a_period_limit_agree_with_enumeration(objective: str) -> None:
    for graph, costs in few_plans(300, 2000)[: COUNT // 3]:
        try:
            free = solve(graph, costs, objective="throughput")
        except InfeasibleError:
            continue
        for limits in (Limits(power_w=0.8 * free.power_w), Limits(period_s=1.2 * free.period_s)):
            values = []
            for method in ("milp", "pearl.testing.exhaustive"):
                try:
                    plan = solve(graph, costs, objective=objective, method=method, limits=limits)
                    values.append(plan.value)
                    assert limits.power_w is None or plan.power_w <= limits.power_w * (1 + 1e-9)
                    assert limits.period_s is None or plan.period_s <= limits.period_s * (1 + 1e-9)
                except InfeasibleError:
                    values.append(0.0)
            assert values[0] == pytest.approx(values[1], rel=TOLERANCE)


def solved(graph: TaskGraph, costs: CostTable) -> Plan | None:
    try:
        return solve(graph, costs)
    except InfeasibleError:
        return None


def scaled(costs: CostTable, factor: float) -> CostTable:
    """Every time, of modes, pair terms and links, times `factor`."""
    modes = []
    for m in costs.modes:
        e = m.estimate
        times = (e.latency_s, e.occupancy_s, e.low_s, e.high_s)
        modes.append(replace(m, estimate=Estimate(*(t * factor for t in times), e.energy_j)))
    links = tuple(
        replace(
            link,
            latency_s=link.latency_s * factor,
            per_message_s=link.per_message_s * factor,
            bytes_per_s=link.bytes_per_s / factor,
        )
        for link in costs.platform.links
    )
    pairs = {k: v * factor for k, v in costs.pair_extra_s.items()}
    return CostTable(replace(costs.platform, links=links), tuple(modes), pairs)


def faster(costs: CostTable) -> CostTable:
    """The table with half the seconds on the first device."""
    half = scaled(costs, 0.5).modes
    pairs = zip(costs.modes, half, strict=True)
    return replace(costs, modes=tuple(new if m.device == "d0" else m for m, new in pairs))


def renamed(graph: TaskGraph, costs: CostTable) -> tuple[TaskGraph, CostTable]:
    """The problem with other names of tasks, in another order of the alphabet."""

    def new(n: str) -> str:
        return f"z{9 - int(n[1:])}"

    other = replace(
        graph,
        tasks=tuple(replace(t, name=new(t.name)) for t in graph.tasks),
        edges=tuple(replace(e, src=new(e.src), dst=new(e.dst)) for e in graph.edges),
        fusions=tuple(replace(f, tasks=tuple(map(new, f.tasks))) for f in graph.fusions),
    )
    pairs = costs.pair_extra_s.items()
    return other, CostTable(
        costs.platform,
        tuple(replace(m, tasks=tuple(map(new, m.tasks))) for m in costs.modes),
        {((new(a), ak), (new(b), bk)): v for ((a, ak), (b, bk)), v in pairs},
    )


@pytest.mark.parametrize("seed", range(8))
def test_scaled_times_scale_the_period_and_new_names_change_nothing(seed: int) -> None:
    graph, costs = random_problem(seed)
    plan, slow = solved(graph, costs), solved(graph, scaled(costs, 1000.0))
    same = solved(*renamed(graph, costs))
    assert (plan is None) == (slow is None) == (same is None)
    if plan and slow and same:
        assert slow.period_s == pytest.approx(1000 * plan.period_s, rel=TOLERANCE)
        assert same.period_s == pytest.approx(plan.period_s, rel=TOLERANCE)


@pytest.mark.parametrize("seed", range(8))
def test_a_faster_device_never_makes_the_optimum_worse(seed: int) -> None:
    graph, costs = random_problem(seed)
    costs = CostTable(costs.platform, costs.modes)
    plan, better = solved(graph, costs), solved(graph, faster(costs))
    if plan and better:
        assert better.bound_s <= plan.period_s * (1 + TOLERANCE)
        if better.status == "optimal":
            assert better.period_s <= plan.period_s * (1 + TOLERANCE)


def test_slack_of_prefetch_and_deferral_shares_the_staleness_limit() -> None:
    platform = star(devices("cpu", "gpu"), 1e-6, 16e9)
    costs = dqn_costs(platform, {"cpu": 1.0, "gpu": 1.5})
    plan = solve(dqn(4), costs, limits=Limits(prefetch=2, priority_staleness=1))
    slack = {(e.src, e.dst): e.slack for e in plan.edges}
    taken = slack["sample", "learn"] + slack["learn", "priorities"]
    assert taken <= 1
    assert plan.period_s <= solve(dqn(4), costs).period_s * (1 + TOLERANCE)


def test_dqn_on_one_lane_takes_the_sum_of_its_firings() -> None:
    costs = dqn_costs(star(devices("cpu", lanes=1)), {"cpu": 1.0})
    plan = solve(dqn(8), costs)
    assert plan.period_s == pytest.approx((20 + 40 + 5 + 8 * (9 + 30 + 3) + 4) * 1e-6)
    assert plan.status == "optimal"
    assert plan.bottleneck.kind == "lane"
    assert plan.rates["env_steps_per_s"] == pytest.approx(8 / plan.period_s)


def test_dqn_with_eight_steps_on_four_devices_is_solved_to_optimality() -> None:
    platform = star(devices("cpu", "gpu1", "gpu2", "fpga"), 5e-6, 16e9)
    costs = dqn_costs(platform, {"cpu": 1.0, "gpu1": 1.6, "gpu2": 1.2, "fpga": 0.9})
    plan = solve(dqn(8), costs)
    assert plan.status == "optimal"


def test_a_known_plan_of_overlapping_iterations_is_none_of_makespan() -> None:
    """Two tasks of 1 s on one lane end after 2 s. An order in which x runs ahead, or a token of
    slack between them, would hide one of them from the first iteration."""
    alone = tuple(Edge(t, t, tokens_seq=1) for t in "xy")
    graph = TaskGraph("two", loop("x", "y").tasks, alone)
    costs = CostTable(star(devices("a", lanes=1)), (mode("x", "a", 1.0), mode("y", "a", 1.0)))
    known = solve(graph, costs)
    (lane,) = known.lanes
    ahead = tuple(replace(e, offset=int(e.task == "x")) for e in lane.order)
    known = replace(known, lanes=(replace(lane, order=ahead),))
    check_plan(known, Problem(graph, costs))
    soonest = solve(graph, costs, objective="makespan", method="heft", known=known)
    assert soonest.value == pytest.approx(2.0)

    slack = (*alone, Edge("x", "y", limit="prefetch"), Edge("y", "x", tokens_seq=1))
    graph, limits = TaskGraph("slack", graph.tasks, slack), Limits(prefetch=1)
    costs = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), mode("y", "b", 1.0)))
    known = solve(graph, costs, limits=limits)
    assert known.period_s == pytest.approx(1.0)
    soonest = solve(graph, costs, objective="makespan", method="heft", limits=limits, known=known)
    assert soonest.value == pytest.approx(2.0)
