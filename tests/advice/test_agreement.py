"""The explanation, the plan, the front, the report and the page say the same of one spec."""

from __future__ import annotations

import pytest

import pearl
from pearl.advice import advise
from pearl.advice.comparison import number, sampled_rates
from pearl.explanation import explain
from pearl.formatting import count
from pearl.planner.planner import pareto
from pearl.planning.draws import Draws
from pearl.planning.plans import load_plan
from pearl.report.report import Report

SPEC = {
    "algorithm": {"name": "sac", "env": "Pendulum-v1", "num_envs": 4, "hidden": [64, 64],
                  "batch_size": 64},
    "platform": "cpu_gpu",
}  # fmt: skip


def test_they_agree_on_every_number() -> None:
    system = pearl.load(SPEC)
    plan = pearl.plan(system)
    rate = plan.rates["env_steps_per_s"]
    assert plan.value == pytest.approx(rate)

    explained = explain(plan, time_limit_s=1e-3)
    assert explained.value == plan.value
    assert explained.throughput == pytest.approx(rate)
    assert explained.efficiency == pytest.approx(plan.env_steps_per_j)
    assert explained.bound.period_s == plan.period_s

    fastest = pareto(system, gap=0.2, time_limit_s=300.0)[-1]
    assert fastest.rates["env_steps_per_s"] == pytest.approx(rate)

    found = advise(system, about=["bound"], time_limit_s=300.0)
    assert found.plan.to_json()["bands"] == plan.to_json()["bands"]
    bound = found.verdicts[0]
    assert bound.numbers["value"] == pytest.approx(rate)
    assert bound.numbers["period_s"] == pytest.approx(plan.period_s)
    assert bound.numbers["bound"] == plan.bottleneck.name

    assert plan.bands is not None
    low, high = plan.bands.env_steps_per_s or (0, 0)
    said = f"{count(rate)} env steps/s ({count(low)}–{count(high)})"
    assert said in Report(plan, None, system).text(100, verbose=True)
    assert said in bound.answer
    drawn = sampled_rates(plan, Draws())
    assert sorted(drawn)[10] == pytest.approx(low, rel=0.1)
    assert number(plan) == pytest.approx(rate)

    kept = load_plan(plan.to_json())
    assert kept.bands == plan.bands
    assert kept.rates == plan.rates
