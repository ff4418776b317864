"""The front between throughput and power: against enumeration, its ends, gaps, time and errors."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import pearl
from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planner import energy_front
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.report.bands_text import bands_text
from pearl.report.front_page import front_page
from pearl.report.terminal import page_text
from pearl.solvers.methods import enumeration
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.solver import solve_problem
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.verification import check_plan
from pearl_estimators import Estimate
from pearl_estimators.power import SOURCE
from tests.graphs import dqn, dqn_costs

GAP = 0.1


def small_problems(count: int) -> list[tuple[TaskGraph, CostTable]]:
    found: list[tuple[TaskGraph, CostTable]] = []
    seed = 5000
    while len(found) < count:
        graph, costs = random_problem(seed, most_tasks=3, most_devices=3)
        seed += 1
        try:
            size = enumeration.count(search_spaces(Problem(graph, costs)))
        except InfeasibleError:
            continue
        if 4 <= size <= 60:
            found.append((graph, costs))
    return found


def every_point(graph: TaskGraph, costs: CostTable) -> list[tuple[float, float]]:
    """Power and iterations a second of every assignment with good orders, not slowed down."""
    found = []
    for a in enumeration.assignments(enumeration.every_space(Problem(graph, costs))):
        period = best_orders(build_timed_graph(a)).period_s
        found.append((a.energy_j(period) / period, 1 / period))
    return found


def rate(plan: Plan) -> float:
    return 1 / plan.period_s


@pytest.mark.parametrize("number", range(4))
def test_no_plan_dominates_the_front_and_none_lies_far_above_it(number: int) -> None:
    graph, costs = small_problems(4)[number]
    plans = pearl.pareto(graph, costs, gap=GAP, time_limit_s=600)
    points = every_point(graph, costs)
    for plan in plans:
        check_plan(plan, Problem(graph, costs))
        assert plan.status == "optimal"
        assert plans.open_w == ()
        for power, speed in points:
            less, more = power < plan.power_w * (1 - 1e-6), speed > rate(plan) * (1 + 1e-6)
            as_little = power <= plan.power_w * (1 + 1e-9)
            as_fast = speed >= rate(plan) * (1 - 1e-9)
            assert not (less and as_fast)
            assert not (more and as_little)
    for power, speed in points:
        assert any(
            p.power_w <= power * (1 + GAP) * (1 + 1e-5)
            and rate(p) * (1 + GAP) * (1 + 1e-5) >= speed
            for p in plans
        )


@pytest.mark.parametrize("number", range(4))
def test_gaps_are_small_or_empty(number: int) -> None:
    graph, costs = small_problems(4)[number]
    plans = pearl.pareto(graph, costs, gap=GAP, time_limit_s=600)
    frugal = solve(graph, costs, objective="power_efficiency")
    for a, b in pairwise(plans):
        assert a.power_w < b.power_w
        assert a.value < b.value
        near = [b.power_w <= a.power_w * (1 + GAP + 1e-6), b.value <= a.value * (1 + GAP + 1e-6)]
        if all(near) or (b.power_w <= frugal.power_w and any(near)):
            continue
        below = b.power_w / (1 + GAP) if not near[0] else b.power_w * (1 - 2e-6)
        between = solve(graph, costs, limits=Limits(power_w=max(below * (1 - 1e-6), a.power_w)))
        assert between.value <= a.value * (1 + 1e-6)


def test_the_ends_are_most_throughput_and_least_power() -> None:
    graph, costs = small_problems(1)[0]
    plans = pearl.pareto(graph, costs, gap=GAP, time_limit_s=600)
    assert plans[-1].value == pytest.approx(solve(graph, costs).value, rel=1e-6)
    assert plans[0].power_w <= min(power for power, _ in every_point(graph, costs)) * (1 + 1e-6)


def test_limits_hold_all_along_the_front() -> None:
    graph, costs = small_problems(3)[2]
    free = pearl.pareto(graph, costs, gap=0.3)
    limits = Limits(
        power_w=(free[0].power_w + free[-1].power_w) / 2, period_s=free[0].period_s * 0.9
    )
    plans = pearl.pareto(graph, costs, limits=limits, gap=0.3)
    for plan in plans:
        assert plan.power_w <= (limits.power_w or 0) * (1 + 1e-9)
        assert plan.period_s <= (limits.period_s or 0) * (1 + 1e-6)
    assert plans[0].period_s == pytest.approx(limits.period_s, rel=1e-6)


def test_of_plans_as_fast_the_one_of_least_power_is_taken() -> None:
    found = devices("a", "b", idle_power_w=10.0, active_power_w=20.0)
    modes = (
        mode("x", "a", 2.0, energy=2.0),
        mode("y", "a", 1.0, energy=30.0),
        mode("y", "b", 1.0, energy=3.0),
    )
    ring = replace(
        loop("x", "y"), edges=tuple(replace(e, tokens_seq=2) for e in loop("x", "y").edges)
    )
    ring = replace(ring, edges=(*ring.edges, *(replace(ring.edges[0], src=t, dst=t) for t in "xy")))
    plans = pearl.pareto(ring, CostTable(star(found), modes), gap=0.5)
    assert plans[-1].period_s == pytest.approx(2.0)
    assert plans[-1].power_w == pytest.approx(20.0 + 5.0 / 2.0)
    assert plans[-1].objective == "throughput"
    assert plans[-1].status == "optimal"


def modelled(power_w: float | None = None) -> tuple[TaskGraph, CostTable, Limits]:
    """A fast mode and a frugal one, with watts that are modelled and so drawn."""
    found = devices("a", "b", idle_power_w=20.0, active_power_w=100.0, when_unused="off")
    modes = tuple(
        replace(
            mode("x", d, seconds),
            estimate=Estimate(seconds, seconds, seconds / 2, 2 * seconds, joules, source=SOURCE),
        )
        for d, seconds, joules in (("a", 2.0, 20.0), ("b", 1.0, 60.0))
    )
    return loop("x"), CostTable(star(found), modes), Limits(power_w=power_w)


def test_the_front_shows_its_assignments_and_the_plans_between_them() -> None:
    graph, costs, _ = modelled()
    plans = pearl.pareto(graph, costs, gap=0.02)
    slow, fast = plans.assignments
    assert [slow.fastest.task("x").device, fast.fastest.task("x").device] == ["a", "b"]
    assert [*slow.plans, *fast.plans] == plans
    assert len(plans.paced) == len(plans) - sum(p.pace_s is None for p in plans) > 10
    first, last = fast.slowest, fast.fastest
    for p in fast.plans:  # linear: fixed joules above idle an iteration
        share = (rate(p) - rate(first)) / (rate(last) - rate(first))
        assert p.power_w == pytest.approx(first.power_w + share * (last.power_w - first.power_w))


def test_the_last_plan_of_the_front_says_what_the_plan_says() -> None:
    graph, costs, _ = modelled()
    plan, plans = solve(graph, costs), pearl.pareto(graph, costs, gap=0.1)
    assert plans[-1].bands == plan.bands
    text = page_text(front_page(plans))
    assert text.count("optimal, proved") == 2
    assert plan.bands is not None
    for p in plans.paced:  # a cap would stop the draws in which idling alone exceeds it
        assert p.bands is not None
        low, high = p.bands.period_s or (0.0, 0.0)
        assert p.pace_s is not None
        assert p.pace_s * (1 - 1e-9) <= low <= high
        assert p.bands.missed == 0


def test_draws_that_cannot_keep_a_limit_on_power_are_counted_and_told() -> None:
    graph, costs, limits = modelled(power_w=41.0)
    plan = solve(graph, costs, limits=limits)
    assert plan.bands is not None
    assert plan.bands.period_s is None
    assert plan.bands.missed > 0
    told = f"{plan.bands.missed} of them exceed the limit on power when idle and count as 0"
    assert told in bands_text(plan.bands)
    plans = pearl.pareto(graph, costs, limits=limits, gap=0.5)
    assert plans[-1].bands == plan.bands
    assert "count as 0" in page_text(front_page(plans))


def test_a_platform_without_power_figures_has_one_plan() -> None:
    costs = CostTable(star(devices("a", "b")), (mode("x", "a", 2.0), mode("x", "b", 1.0)))
    plans = pearl.pareto(loop("x"), costs)
    assert [p.value for p in plans] == [pytest.approx(1.0)]


def test_a_device_that_draws_nothing_does_not_break_the_front() -> None:
    modes = (mode("x", "a", 2.0), mode("x", "b", 1.0, energy=1.0))
    plans = pearl.pareto(loop("x"), CostTable(star(devices("a", "b")), modes), gap=0.5)
    assert plans[0].power_w == 0.0
    assert plans[0].value == pytest.approx(0.5)
    assert plans[-1].value == pytest.approx(1.0)


def test_time_is_kept_and_what_is_not_proven_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that every solve moves on by 8 s, whatever the machine is at."""
    now, seconds = [0.0], list[float]()

    def counted(*given: Any, time_limit_s: float, **more: Any) -> Plan:
        seconds.append(time_limit_s)
        now[0] += 8.0
        return solve_problem(*given, time_limit_s=time_limit_s, **more)

    monkeypatch.setattr(energy_front, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(energy_front, "solve_problem", counted)
    found = tuple(
        replace(d, idle_power_w=20.0, active_power_w=200.0, when_unused="off")
        for d in devices("cpu", "gpu1", "gpu2", "fpga")
    )
    costs = dqn_costs(star(found, 5e-6, 16e9), {"cpu": 1.0, "gpu1": 1.6, "gpu2": 1.2, "fpga": 0.9})
    modes = tuple(
        replace(m, estimate=replace(m.estimate, energy_j=m.estimate.latency_s * (30 + 40 * i)))
        for i, m in enumerate(costs.modes)
    )
    plans = pearl.pareto(dqn(4), CostTable(costs.platform, modes), gap=1e-4, time_limit_s=80.0)
    assert len(seconds) <= 80 / 8 + 2  # the last point takes two, of which none begins much later
    assert max(seconds) <= 80 / 8
    assert plans.open_w
    assert all(low < high for low, high in plans.open_w)
    assert all(math.isfinite(p.value) for p in plans)


def test_arguments_that_make_no_sense_are_spec_errors() -> None:
    costs = CostTable(star(devices("a")), (mode("x", "a", 1.0),))
    with pytest.raises(SpecError, match="gap is 0"):
        pearl.pareto(loop("x"), costs, gap=0.0)
    with pytest.raises(SpecError, match="time_limit_s is -1"):
        pearl.pareto(loop("x"), costs, time_limit_s=-1.0)
    with pytest.raises(InfeasibleError, match="period"):
        pearl.pareto(loop("x"), costs, limits=Limits(period_s=0.5))
