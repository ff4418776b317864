"""Plans of least regret, against every assignment and every order under every draw."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pearl import Limits, solve
from pearl.errors import InfeasibleError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import load_plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.planning.valuation import evaluate_samples
from pearl.report.bands_text import regret_text
from pearl.solvers import robust
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.solvers.model.method import ROBUST as KINDS
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Outcome
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.robust import DRAWS
from pearl.testing import exhaustive
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.time_limit import OutOfTimeError
from pearl_estimators import Estimate, power
from tests.graphs import banded


def every_order(a: Assignment) -> Iterator[Orders]:
    """All orders of the lanes, each entry up to two iterations ahead."""
    timed = build_timed_graph(a)
    rings = []
    for members in timed.lanes.values():
        first, *others = members
        rings.append(
            [
                ((first, 2), *zip(order, ahead, strict=True))
                for order in itertools.permutations(others)
                for ahead in itertools.product(range(5), repeat=len(others))
            ]
        )
    for choice in itertools.product(*rings):
        yield dict(zip(timed.lanes, choice, strict=True))


def least_regret(graph: TaskGraph, costs: CostTable, kind: str, seed: int) -> float:
    """By enumeration alone: seconds of every plan in every draw, each timed anew."""
    draws = Draws(DRAWS, seed)
    tables = draws.tables(graph, costs)
    rows = []
    for a in assignments(every_space(Problem(graph, costs))):
        drawn = [
            replace(
                a,
                costs=table,
                modes=tuple(next(x for x in table.of(*m.tasks) if x.key == m.key) for m in a.modes),
            )
            for table in tables
        ]
        timed = [build_timed_graph(d) for d in drawn]
        for orders in every_order(a):
            if ring_period(timed[0], orders) < float("inf"):
                rows.append([ring_period(t, orders) for t in timed])
    seconds = np.array(rows)
    regrets = seconds / seconds.min(axis=0) - 1
    return float((regrets.mean(axis=1) if kind == "mean" else regrets.max(axis=1)).min())


def small(seed: int) -> tuple[TaskGraph, CostTable]:
    graph, costs = random_problem(seed, most_tasks=3, most_devices=2)
    return graph, banded(costs, 3.0, 3.0, (0.2, 4.0))


def firings(graph: TaskGraph) -> int:
    return sum(graph.repetition.values())


SMALL = [s for s in range(60) if firings(small(s)[0]) <= 3 and not small(s)[1].pair_extra_s][:6]


@pytest.mark.parametrize("objective", KINDS)
@pytest.mark.parametrize("seed", SMALL)
def test_least_regret_is_that_of_enumeration(seed: int, objective: str) -> None:
    graph, costs = small(seed)
    plan = solve(graph, costs, objective=objective, seed=seed)
    assert plan.regret is not None
    assert plan.regret.kind == KINDS[objective]
    least = least_regret(graph, costs, KINDS[objective], seed)
    value = plan.regret.mean if objective == "robust" else plan.regret.worst
    assert value == pytest.approx(least, abs=1e-6)
    assert plan.regret.bound <= least + 1e-6


def coin() -> CostTable:
    """Two devices near each other by the estimates; the first is known well, the second is not."""
    sure = replace(mode("x", "cpu", 1.05), estimate=Estimate(1.05, 1.05, 1.0, 1.1))
    wild = replace(mode("x", "gpu", 1.0), estimate=Estimate(1.0, 1.0, 0.9, 8.0))
    return CostTable(star(devices("cpu", "gpu")), (sure, wild))


def test_a_device_that_nobody_knows_is_left_where_one_that_is_known_is_near() -> None:
    graph = loop("x")
    assert solve(graph, coin()).task("x").device == "gpu"
    for objective in KINDS:
        plan = solve(graph, coin(), objective=objective)
        assert plan.task("x").device == "cpu"
        assert plan.objective == "throughput"
        assert plan.status == "optimal"  # by the regret; by the estimates the other is better
        assert plan.gap == pytest.approx(0, abs=1e-6)
        assert plan.value == pytest.approx(plan.bound_value / 1.05)
        regret = plan.regret
        assert regret is not None
        assert 0 < regret.mean < regret.worst
        assert regret.bound == pytest.approx(regret.mean if objective == "robust" else regret.worst)


def test_limits_hold_for_the_estimates() -> None:
    """The sure device is too slow for the limit; the draws may not choose it."""
    fast = Limits(min_throughput_per_s=0.99)
    plan = solve(loop("x"), coin(), objective="robust", limits=fast)
    assert plan.task("x").device == "gpu"
    with pytest.raises(InfeasibleError):
        solve(loop("x"), coin(), objective="robust", limits=Limits(min_throughput_per_s=2.0))


def test_one_seed_gives_one_plan_and_a_plan_keeps_its_regret_in_a_file() -> None:
    graph, costs = small(SMALL[0])
    first, again = (solve(graph, costs, objective="robust", seed=5) for _ in range(2))
    assert first.regret == again.regret
    assert load_plan(first.to_json()).regret == first.regret
    other = solve(graph, costs, objective="robust", seed=6)
    assert other.regret != first.regret


def lottery(power_w: float | None = None) -> tuple[TaskGraph, CostTable, Limits]:
    """Two tasks on four devices that nobody knows: in each draw another plan is best."""
    found = devices("a", "b", "c", "d", idle_power_w=5.0, active_power_w=60.0)
    times = [(d, 1.0 + 0.1 * n) for n, d in enumerate("abcd")]
    modes = tuple(
        replace(mode(t, d, s), estimate=Estimate(s, s, s / 3, s * 3, 40.0, source=power.SOURCE))
        for t in "xy"
        for d, s in times
    )
    return loop("x", "y"), CostTable(star(found), modes), Limits(power_w=power_w)


@pytest.mark.parametrize("power_w", [None, 60.0])
@pytest.mark.parametrize("solved", [0, 13, DRAWS])
@pytest.mark.parametrize("objective", KINDS)
def test_the_regret_of_draws_that_are_not_solved_is_an_interval_that_holds_the_true_one(
    objective: str, solved: int, power_w: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that has no time for most draws. Few of these assignments are candidates then, and
    the best of them is not the best there is."""
    monkeypatch.setattr(robust, "FEW", 0)
    graph, costs, limits = lottery(power_w)
    draws, calls = Draws(DRAWS, 1), 0

    def run(problem: Problem, search: Search) -> Outcome:
        nonlocal calls
        calls += 1
        if calls > solved + 1:
            raise OutOfTimeError
        return exhaustive.solve(problem, search)

    deadline = time.monotonic() + 1e6
    problem, search = Problem(graph, costs, limits), Search(deadline, 0, "pearl.testing.exhaustive")
    outcome, said = robust.least_regret(problem, search, run, KINDS[objective], draws)
    assert said.solved == solved or solved == 0
    tables = draws.tables(graph, costs)
    least = [
        solve(graph, t, limits=limits, method="pearl.testing.exhaustive").period_s for t in tables
    ]
    timed = build_timed_graph(outcome.best.assignment)
    own = evaluate_samples(timed, outcome.best.ordered.orders, draws, power_w=power_w).period_s
    true = own / np.array(least) - 1
    assert said.mean <= true.mean() + 1e-6
    assert said.worst <= true.max() + 1e-6
    assert said.mean_high is None or said.mean_high >= true.mean() - 1e-6
    assert said.worst_high is None or said.worst_high >= true.max() - 1e-6
    assert said.is_proved <= (solved == DRAWS)
    assert outcome.timed_out == (solved < DRAWS)
    if solved < DRAWS:
        assert f"{said.solved} of 40 draws solved" in regret_text(said)
        assert "proved" not in regret_text(said)
    else:
        assert (said.mean, said.worst) == pytest.approx((said.mean_high, said.worst_high))
    if power_w is None:
        assert said.mean_high is not None


def test_status_and_gap_are_those_of_the_regret() -> None:
    """No draw is solved by a list scheduler, which proves little: so nothing is proved of its
    regret, though its throughput by the estimates may be."""
    graph, costs, _ = lottery()
    plan = solve(graph, costs, objective="robust_worst", method="heft")
    regret = plan.regret
    assert regret is not None
    assert regret.worst_high is not None
    assert plan.gap == pytest.approx(1 - (1 + regret.bound) / (1 + regret.worst_high))
    assert (plan.status == "optimal") == regret.is_proved


def test_watts_are_drawn_for_idle_devices_too() -> None:
    """What a plan draws under a table of the draws is what valuing it says."""
    graph, costs, _ = lottery()
    draws = Draws(5, 3)
    plan = solve(graph, costs)
    timed, orders, _ = plan_orders(plan, Problem(graph, costs))
    joules = evaluate_samples(timed, orders, draws).energy_j
    for table, expected in zip(draws.tables(graph, costs), joules, strict=True):
        drawn, ring, _ = plan_orders(plan, Problem(graph, table))
        energy = drawn.assignment.energy_j(ring_period(drawn, ring))
        assert energy == pytest.approx(expected, rel=1e-9)


def test_the_estimates_get_the_time_of_the_draws_where_their_share_is_too_short() -> None:
    graph, costs, limits = lottery()
    deadlines: list[float] = []

    def run(problem: Problem, search: Search) -> Outcome:
        deadlines.append(search.deadline)
        if len(deadlines) == 1:
            raise OutOfTimeError
        return exhaustive.solve(problem, search)

    deadline = time.monotonic() + 1e6
    problem, search = Problem(graph, costs, limits), Search(deadline, 0, "pearl.testing.exhaustive")
    outcome, _ = robust.least_regret(problem, search, run, "mean", Draws(DRAWS, 1))
    assert deadlines[0] < deadlines[1] == deadline
    assert outcome.best.cost > 0
