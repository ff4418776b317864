"""Whatever is wrong is said in one of our two errors, by name, with what would have to change."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pearl import solve, time_limit
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planner.planner import pareto
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers import METHODS, method_run
from pearl.solvers.infeasible import iis
from pearl.solvers.makespan import cpsat
from pearl.solvers.model.method import OBJECTIVES
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import loop, random_problem
from pearl.verification import check_plan
from tests.graphs import anything
from tests.schemas.test_schemas import problems as schema_problems
from tests.solvers.test_answers import both

WAYS = [
    (name, objective)
    for name, method in METHODS.items()
    if name != "cpsat" or cpsat.installed()
    for objective in method.objectives
] + [("pearl.testing.exhaustive", objective) for objective in OBJECTIVES]
"""Every method with every objective it can be asked for."""

QUIET = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def refused(error: SpecError | InfeasibleError) -> None:
    """An error of ours says something, and its conflict is what the contract describes."""
    assert str(error).strip()
    if isinstance(error, InfeasibleError):
        found = {"schema": 1, "status": "infeasible", "message": str(error)}
        assert schema_problems({**found, "conflict": list(error.conflict)}, "infeasible") == []


def attempt(
    graph: TaskGraph, costs: CostTable, limits: Limits, method: str, objective: str
) -> Plan | None:
    try:
        plan = solve(
            graph, costs, limits=limits, method=method, objective=objective, time_limit_s=1.0
        )
    except (SpecError, InfeasibleError) as error:
        refused(error)
        return None
    check_plan(plan, Problem(graph, costs))
    assert plan.period_s > 0
    return plan


@pytest.mark.parametrize(("method", "objective"), WAYS)
@QUIET
@given(data=st.data())
def test_any_input_gives_a_valid_plan_or_one_of_our_errors(
    method: str, objective: str, data: st.DataObject
) -> None:
    try:
        graph, costs, limits = data.draw(anything())
    except SpecError as error:  # the nouns refuse what cannot be
        refused(error)
        return
    plan = attempt(graph, costs, limits, method, objective)
    if plan and objective != "makespan":
        longest = limits.period_s or math.inf
        assert plan.period_s <= longest * (1 + 1e-6)
        assert plan.power_w <= (limits.power_w or math.inf) * (1 + 1e-6)


WRONG = st.sampled_from([math.nan, math.inf, -math.inf, -1.0])


@settings(QUIET, max_examples=100)
@given(problem=st.integers(0, 500), wrong=WRONG, data=st.data())
def test_no_number_that_cannot_be_gets_into_a_problem(
    problem: int, wrong: float, data: st.DataObject
) -> None:
    """Each number of each part of a random problem; the nouns that hold them refuse."""
    graph, costs = random_problem(problem)
    platform = costs.platform
    estimate = data.draw(st.sampled_from(costs.modes)).estimate
    kernel = data.draw(st.sampled_from(graph.tasks)).kernel
    parts: list[tuple[Any, tuple[str, ...]]] = [
        (estimate, ("latency_s", "low_s", "energy_j")),
        (kernel, ("flops", "bytes_in", "bytes_out", "resident_bytes")),
        (platform.devices[0], ("idle_power_w", "active_power_w", "overhead_s")),
        (Limits(), ("power_w", "period_s", "min_throughput_per_s")),
        *((e, ("bytes",)) for e in graph.edges[:1]),
        *((k, ("latency_s", "bytes_per_s", "per_message_s")) for k in platform.links[:1]),
    ]
    whole, names = data.draw(st.sampled_from(parts))
    name = data.draw(st.sampled_from(names))
    with pytest.raises((SpecError, ValueError), match=name):
        replace(whole, **{name: wrong})


@settings(QUIET, max_examples=15)
@given(problem=st.integers(0, 10_000), lag=st.integers(0, 2))
def test_random_problems_give_valid_plans_by_every_method(problem: int, lag: int) -> None:
    """No value is beyond the bound of enumeration, and no bound short of what it found."""
    graph, costs = random_problem(problem, most_tasks=3, most_devices=2)
    limits = Limits(policy_lag=lag)
    plans = {way: plan for way in WAYS if (plan := attempt(graph, costs, limits, *way))}
    for (method, objective), plan in plans.items():
        other = plans.get(("pearl.testing.exhaustive", objective))
        if other:
            sign = -1 if objective == "makespan" else 1
            assert sign * plan.value <= sign * other.bound_value * (1 + sign * 1e-6), method
            assert sign * other.value <= sign * plan.bound_value * (1 + sign * 1e-6), method


@settings(QUIET, max_examples=10)
@given(problem=st.integers(0, 10_000))
def test_fronts_of_random_problems_are_fronts_or_one_of_our_errors(problem: int) -> None:
    graph, costs = random_problem(problem, most_tasks=3, most_devices=2)
    try:
        plans = pareto(graph, costs, gap=0.5, time_limit_s=2.0)
    except (SpecError, InfeasibleError) as error:
        refused(error)
        return
    powers, values = [p.power_w for p in plans], [p.value for p in plans]
    assert powers == sorted(powers)
    assert values == sorted(values)
    for plan in plans:
        check_plan(plan, Problem(graph, costs))


def test_a_method_out_of_time_does_not_say_that_there_is_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the plan that needs no search breaks a limit. The time ends in the method or before the
    method begins; each case has its sentence."""
    monkeypatch.setattr(method_run, "first_plan", lambda _: None)
    names = [f"t{i}" for i in range(7)]
    limits = Limits(period_s=8.0, max_lanes=2)
    unproved = "did not prove that there is none|none is excluded"
    problem = loop(*names), both(*names)
    with pytest.raises(InfeasibleError, match=unproved) as error:
        solve(*problem, limits=limits, method="pearl.testing.exhaustive", time_limit_s=1e-6)
    assert error.value.conflict == ()


def test_explaining_ends_with_the_time_given_but_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that every solve moves on by 0.4 s, whatever the machine is at."""
    now, solved = [0.0], list[float]()
    run = PeriodForm.run

    def counted(form: PeriodForm, below: float, seconds: float) -> Any:
        solved.append(seconds)
        now[0] += 0.4
        return run(form, below, seconds)

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(PeriodForm, "run", counted)
    for module in (iis, time_limit):
        monkeypatch.setattr(module, "time", clock)
    costs = both(*"xyz", seconds=(2.0, 2.0))
    limits = Limits(period_s=1.0, pin=dict.fromkeys("xyz", "a"), max_lanes=1, power_w=100.0)
    error = iis.find_conflict(Problem(loop(*"xyz"), costs, limits), deadline=0.0)
    assert 0 < len(solved) <= math.ceil(iis.LEAST_S / 0.4)  # none begins after it
    assert max(solved) <= iis.LEAST_S
    assert "relax at least one of these" in str(error)  # no longer said to be a smallest set
