"""Plans of least regret, against every assignment and every order under every draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pearl import Limits, solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws, scaled
from pearl.planning.plans import load_plan
from pearl.planning.timing import Assignment, Orders, timing
from pearl.solvers import robust
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.solvers.model.list_orders import ring_period
from pearl.solvers.robust import DRAWS
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl_estimators import Estimate
from tests.graphs import banded

KINDS = {"robust": "mean", "robust_worst": "worst"}


def every_order(a: Assignment) -> Iterator[Orders]:
    """All orders of the lanes, each entry up to two iterations ahead."""
    timed = timing(a)
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
    for a in assignments(every_space(graph, costs, Limits())):
        drawn = [
            replace(
                a,
                costs=table,
                modes=tuple(next(x for x in table.of(*m.tasks) if x.key == m.key) for m in a.modes),
            )
            for table in tables
        ]
        timed = [timing(d) for d in drawn]
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


def test_a_bound_that_is_not_met_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without enumeration the bound of weighted means alone is left, below the worst regret."""
    monkeypatch.setattr(robust, "FEW", 0)
    gaps = []
    for seed in SMALL:
        graph, costs = small(seed)
        found = solve(graph, costs, objective="robust_worst", seed=seed).regret
        assert found is not None
        gaps.append(found.worst - found.bound)
    assert max(gaps) > 1e-3
    assert min(gaps) >= 0


def test_where_assignments_are_few_the_regret_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    wild = Estimate(1.0, 1.0, 1 / 3, 3.0)
    modes = (*(replace(mode("x", d, 1.0), estimate=wild) for d in "ab"), mode("x", "c", 1.0))
    costs = CostTable(star(devices("a", "b", "c")), modes)
    proved = solve(loop("x"), costs, objective="robust_worst").regret
    monkeypatch.setattr(robust, "FEW", 0)
    open_ = solve(loop("x"), costs, objective="robust_worst").regret
    assert proved is not None
    assert open_ is not None
    assert proved.bound == pytest.approx(proved.worst)
    assert open_.bound < 0.9 * open_.worst


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
        assert plan.status == "feasible"  # by the estimates the other is better
        assert plan.gap == pytest.approx(1 - 1 / 1.05)
        regret = plan.regret
        assert regret is not None
        assert 0 < regret.mean < regret.worst
        assert regret.bound == pytest.approx(regret.mean if objective == "robust" else regret.worst)


def test_without_bands_it_is_the_plan_of_throughput() -> None:
    graph, costs = random_problem(3, most_tasks=4, most_devices=2)
    exact = tuple(
        replace(
            m, estimate=replace(m.estimate, low_s=m.estimate.latency_s, high_s=m.estimate.latency_s)
        )
        for m in costs.modes
    )
    costs = replace(costs, modes=exact)
    plain, robust = solve(graph, costs), solve(graph, costs, objective="robust")
    assert robust.value == pytest.approx(plain.value)
    assert robust.regret is not None
    assert robust.regret.worst == pytest.approx(0, abs=1e-9)


def test_limits_hold_for_the_estimates() -> None:
    """The sure device is too slow for the limit; the draws may not choose it."""
    fast = Limits(min_throughput_per_s=0.99)
    plan = solve(loop("x"), coin(), objective="robust", limits=fast)
    assert plan.task("x").device == "gpu"
    with pytest.raises(InfeasibleError):
        solve(loop("x"), coin(), objective="robust", limits=Limits(min_throughput_per_s=2.0))


@pytest.mark.parametrize("method", ["exhaustive", "local_search"])
def test_any_method_of_throughput_serves(method: str) -> None:
    plan = solve(loop("x"), coin(), objective="robust", method=method)
    assert plan.task("x").device == "cpu"
    assert plan.method == method


def test_one_seed_gives_one_plan_and_a_plan_keeps_its_regret_in_a_file() -> None:
    graph, costs = small(SMALL[0])
    first, again = (solve(graph, costs, objective="robust", seed=5) for _ in range(2))
    assert first.regret == again.regret
    assert load_plan(first.to_json()).regret == first.regret
    other = solve(graph, costs, objective="robust", seed=6)
    assert other.regret != first.regret


def test_an_objective_that_is_not_there_names_these_too() -> None:
    with pytest.raises(SpecError, match="robust_worst"):
        solve(loop("x"), coin(), objective="sturdy")


def test_drawn_tables_scale_pair_terms_with_their_mode() -> None:
    costs = coin()
    pair = (("x", costs.modes[0].key), ("x", costs.modes[1].key))
    table = scaled(replace(costs, pair_extra_s={pair: 0.5}), [2.0, 3.0], {})
    assert table.pair_extra_s[pair] == 1.0
    assert [m.estimate.latency_s for m in table.modes] == [2.1, 3.0]


def test_the_bound_knows_of_links_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """b on the CPU, or behind a link that takes all of the period: both are linear in the draws,
    so that the mean table bounds the regret without enumerating."""
    monkeypatch.setattr(robust, "FEW", 0)
    platform = star(devices("cpu", "gpu"), 0.5, 1e9)
    links = (replace(platform.links[0], band=(0.5, 3.0)),)
    modes = (mode("a", "cpu", 1e-9), mode("b", "cpu", 1.1), mode("b", "gpu", 1e-9))
    costs = CostTable(replace(platform, links=links), modes)
    plan = solve(loop("a", "b"), costs, objective="robust")
    assert plan.regret is not None
    assert plan.regret.bound == pytest.approx(plan.regret.mean, rel=1e-6)
    assert plan.regret.mean > 0.05
