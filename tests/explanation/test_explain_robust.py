"""A robust plan is explained by the draws that it was chosen by; a better plan is never "equal"."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pearl import explain, solve
from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.solvers.model.method import ROBUST
from pearl.solvers.orders.list_orders import ring_period
from pearl.testing.graphs import devices, loop, mode, star
from pearl_estimators import Estimate
from tests.explanation.kept_explanations import doubtful


def mean_and_worst(plan: Plan, graph: TaskGraph, costs: CostTable) -> tuple[float, float]:
    """1 + regret, every draw timed and solved anew."""
    assert plan.regret is not None
    found = []
    for table in Draws(plan.regret.draws, plan.regret.seed).tables(graph, costs):
        timed, orders, _ = plan_orders(plan, Problem(graph, table))
        found.append(
            ring_period(timed, orders)
            / solve(graph, table, method="pearl.testing.exhaustive").period_s
        )
    return float(np.mean(found)), max(found)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", ROBUST)
def test_other_plans_are_compared_under_the_draws(objective: str) -> None:
    graph, costs = doubtful()
    plan = solve(graph, costs, objective=objective)
    told = explain(plan, within=1.0)
    index = list(ROBUST).index(objective)
    own = mean_and_worst(plan, graph, costs)[index]
    assert len(told.runner_ups.plans) == 3
    for r in told.runner_ups.plans:
        assert r.loss == pytest.approx(1 - own / mean_and_worst(r.plan, graph, costs)[index])
        assert r.loss > 0
    (why,) = [s for s in told.answers if "by the estimates alone" in s.question]
    assert "6.7 % faster" in why.answer
    assert "Its uncertainty is why it was not chosen" in why.answer
    assert f"{ROBUST[objective]} regret" in str(told)


def test_a_link_that_is_made_faster_errs_as_it_did_before() -> None:
    """All of the period is the link's, so twice as fast is + 100 % in every draw."""
    platform = star(devices("cpu", "gpu"), 0.5, 1e9)
    platform = replace(platform, links=(replace(platform.links[0], band=(0.5, 3.0)),))
    costs = CostTable(platform, (mode("a", "cpu", 1e-9), mode("b", "gpu", 1e-9)))
    told = explain(solve(loop("a", "b"), costs, objective="robust"))
    gains = {w.text: w.gain for w in told.what_ifs}
    assert gains["link cpu-gpu twice as fast"] == pytest.approx(1.0, rel=1e-6)


def test_devices_of_which_each_errs_by_itself_are_not_exchanged() -> None:
    """Alike by the estimates. Where their models differ each draw tells them apart; where they are
    of one model none does."""
    wild = Estimate(1.0, 1.0, 0.5, 4.0)
    modes = tuple(replace(mode("x", d, 1.0), estimate=wild) for d in ("b", "c"))
    apart = star(devices("a", "b", "c"))
    same = replace(apart, devices=tuple(replace(d, model="one") for d in apart.devices))
    found = []
    for platform in (apart, same):
        plan = solve(loop("x"), CostTable(platform, modes), objective="robust")
        found.append(len(explain(plan, within=1.0).runner_ups.plans))
    assert found == [1, 0]


def test_a_plan_that_is_better_than_a_proved_one_is_a_fault_and_never_equal() -> None:
    graph = loop("x")
    costs = CostTable(star(devices("a", "b")), (mode("x", "a", 2.0), mode("x", "b", 1.0)))
    slow = solve(graph, replace(costs, modes=costs.modes[:1]))
    with pytest.raises(AssertionError, match=r"x on b is better by 100.0 %"):
        explain(slow, graph, costs)


def test_a_plan_of_a_file_keeps_what_its_explanation_needs() -> None:
    graph, costs = doubtful()
    plan = load_plan(solve(graph, costs, objective="robust").to_json())
    (close,) = explain(plan, graph, costs).runner_ups.plans
    assert close.differs == ("x on gpu",)
    assert plan.regret is not None
    bare = replace(plan, regret=replace(plan.regret, least_s=()))
    with pytest.raises(SpecError, match="least_s has 0 numbers"):
        explain(bare, graph, costs)
