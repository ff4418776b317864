"""Whatever is wrong is said in one of our two errors, by name, with what would have to change."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pearl import solve, time_limit
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planner.energy_front import pareto
from pearl.planning.costs import CostTable
from pearl.planning.plan_validation import check_plan
from pearl.planning.plans import Plan
from pearl.solvers import METHODS
from pearl.solvers.infeasible import iis, limit_sets
from pearl.solvers.methods import cpsat
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import devices, loop, mode, random_problem, star, tasks
from pearl_devices import Kernel
from pearl_estimators import Estimate
from tests.graphs import anything
from tests.schemas.test_schemas import problems as schema_problems

WAYS = [
    (name, objective)
    for name, method in METHODS.items()
    if name != "cpsat" or cpsat.installed()
    for objective in method.objectives
]
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
    check_plan(plan, graph, costs)
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
        (estimate, ("latency_s", "energy_j")),
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


@QUIET
@given(problem=st.integers(0, 10_000), lag=st.integers(0, 2))
def test_random_problems_give_valid_plans_by_every_method(problem: int, lag: int) -> None:
    graph, costs = random_problem(problem, most_tasks=3, most_devices=2)
    values = {}
    for method, objective in WAYS:
        plan = attempt(graph, costs, Limits(policy_lag=lag), method, objective)
        if plan:
            values[method, objective] = plan
    for (method, objective), plan in values.items():
        other = values.get(("exhaustive", objective))
        if other:
            sign = -1 if objective == "makespan" else 1
            assert sign * plan.value <= sign * other.bound_value * (1 + sign * 1e-6), method


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
        check_plan(plan, graph, costs)


X_ONLY = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0),))
ONE = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), mode("y", "b", 1.0)))


@pytest.mark.parametrize("method", list(METHODS))
def test_a_deadlock_names_its_cycle(method: str) -> None:
    graph = TaskGraph("g", tasks("x", "y"), (Edge("x", "y"), Edge("y", "x")))
    with pytest.raises(SpecError, match=r"deadlock: the cycle (x → y → x|y → x → y) has no token"):
        solve(graph, ONE, method=method, objective=METHODS[method].objectives[0])


@pytest.mark.parametrize("method", list(METHODS))
def test_a_task_that_no_device_can_run_is_named(method: str) -> None:
    with pytest.raises(InfeasibleError, match="task 'z' has no mode") as error:
        solve(loop("x", "z"), X_ONLY, method=method, objective=METHODS[method].objectives[0])
    assert error.value.conflict[0]["name"] == "z"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["latency_s", "energy_j", "low_s"])
def test_times_and_energies_that_cannot_be_are_not_built(name: str, value: float) -> None:
    if name == "low_s" and math.isnan(value):
        return  # the default: as exact as latency_s
    with pytest.raises(ValueError, match=name):
        Estimate(**{"latency_s": 1.0, name: value})


def test_pair_terms_must_be_finite_and_leave_a_time_of_at_least_zero() -> None:
    x, y = ("x", ("a", "v", 1)), ("y", ("b", "v", 1))
    with pytest.raises(SpecError, match="pair term of x with y, in seconds, is nan; it must"):
        CostTable(ONE.platform, ONE.modes, {(x, y): math.nan})
    shorter = CostTable(ONE.platform, ONE.modes, {(x, y): -0.5})
    assert solve(loop("x", "y"), shorter).period_s == pytest.approx(1.5)
    with pytest.raises(SpecError, match=r"pair terms of task 'x' on a add up to -1\.5 s"):
        solve(loop("x", "y"), CostTable(ONE.platform, ONE.modes, {(x, y): -1.5}))


def test_an_iteration_that_takes_no_time_has_no_throughput() -> None:
    free = CostTable(star(devices("a")), (mode("x", "a", 0.0),))
    with pytest.raises(SpecError, match="takes 0 s"):
        solve(loop("x"), free)
    with pytest.raises(SpecError, match="takes 0 s"):
        pareto(loop("x"), free)


@pytest.mark.parametrize(
    ("given_limits", "text"),
    [
        ({"power_w": math.nan}, "power_w is nan"),
        ({"period_s": -1.0}, "period_s is -1"),
        ({"policy_lag": -1}, "policy_lag is -1; it must be a whole number of at least 0"),
        ({"prefetch": 1.5}, r"prefetch is 1\.5; it must be a whole number"),
        ({"max_lanes": 0}, "max_lanes is 0"),
        ({"replicas": {"x": 0}}, "replicas of x is 0"),
        ({"together": (("x", "y", "z"),)}, "each entry is a pair of tasks"),
        ({"memory_bytes": {"a": 0.0}}, "memory of a is 0"),
    ],
)
def test_limits_that_cannot_be_are_not_built(given_limits: dict[str, object], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        Limits(**given_limits)  # type: ignore[arg-type]


# What conflicts, and nothing else: a smallest set.


def kinds(error: InfeasibleError) -> set[tuple[str, str]]:
    return {(c["kind"], c["name"]) for c in error.conflict}


def test_of_many_limits_only_those_in_each_others_way_are_named() -> None:
    modes = tuple(
        mode(t, d, s, energy=e) for t in "xy" for d, s, e in (("a", 2.0, 1.0), ("b", 1.0, 50.0))
    )
    costs = CostTable(star(devices("a", "b")), modes)
    limits = Limits(
        pin={"x": "a"}, devices={"y": ("a", "b")}, max_lanes=4, period_s=2.5, power_w=1000.0
    )
    with pytest.raises(InfeasibleError) as error:
        solve(loop("x", "y"), costs, limits=limits)
    assert kinds(error.value) == {("pin", "x"), ("period", "loop")}
    need = next(c["need"] for c in error.value.conflict if c["kind"] == "period")
    assert need == pytest.approx(3.0)
    assert "x pinned to a" in str(error.value)
    assert "without any one of these there would be a plan" in str(error.value)


def test_power_and_period_that_exclude_each_other_say_what_either_would_need() -> None:
    modes = (mode("x", "a", 2.0, energy=2.0), mode("x", "b", 1.0, energy=50.0))
    costs = CostTable(star(devices("a", "b")), modes)
    with pytest.raises(InfeasibleError) as error:
        solve(loop("x"), costs, limits=Limits(power_w=10.0, period_s=1.5))
    by_kind = {c["kind"]: c for c in error.value.conflict}
    assert set(by_kind) == {"power", "period"}
    assert by_kind["power"]["need"] == pytest.approx(50.0 / 1.5, rel=2e-3)
    assert by_kind["period"]["limit"] == 1.5


def test_each_part_of_a_smallest_conflict_can_be_met() -> None:
    modes = tuple(mode(t, d, 1.0) for t in "xyz" for d in "ab")
    costs = CostTable(star(devices("a", "b", memory_bytes=1.5e6)), modes)
    found = tuple(Task(t, Kernel(t, resident_bytes=1e6)) for t in "xyz")
    graph = TaskGraph("g", found, loop("x", "y", "z").edges)
    with pytest.raises(InfeasibleError, match="fits into memory") as error:
        solve(graph, costs)
    assert kinds(error.value) == {("memory", "a"), ("memory", "b")}


def test_limits_that_leave_a_task_nowhere_to_go_are_all_named() -> None:
    modes = tuple(mode(t, d, 1.0) for t in "xyz" for d in "ab")
    costs = CostTable(star(devices("a", "b")), modes)
    limits = Limits(
        pin={"x": "a", "y": "b"}, together=(("x", "y"),), devices={"z": ("a",)}, max_lanes=2
    )
    for method in METHODS:
        with pytest.raises(InfeasibleError) as error:
            solve(
                loop(*"xyz"),
                costs,
                limits=limits,
                method=method,
                objective=METHODS[method].objectives[0],
            )
        assert kinds(error.value) == {("pin", "x"), ("pin", "y"), ("together", "x, y")}
        assert "must run on one device" in str(error.value)
        assert "without any one of these" in str(error.value)


def test_a_pin_against_the_devices_allowed_names_both() -> None:
    modes = tuple(mode("x", d, 1.0) for d in "ab")
    costs = CostTable(star(devices("a", "b")), modes)
    with pytest.raises(InfeasibleError, match="task 'x' has no mode left") as error:
        solve(loop("x"), costs, limits=Limits(pin={"x": "a"}, devices={"x": ("b",)}))
    assert kinds(error.value) == {("pin", "x"), ("devices", "x")}


def test_a_state_that_fits_nowhere_names_every_device_and_not_the_pin() -> None:
    costs = CostTable(
        star(devices("a", "b", memory_bytes=2e6)),
        tuple(mode(t, d, 1.0) for t in "xy" for d in "ab"),
    )
    held = tuple(Task(t, Kernel(t), writes=("big",)) for t in "xy")
    graph = TaskGraph("g", held, loop("x", "y").edges, {"big": 3e6})
    with pytest.raises(InfeasibleError, match="state big needs 3e") as error:
        solve(graph, costs, limits=Limits(pin={"x": "a"}))
    assert kinds(error.value) == {("memory", "a"), ("memory", "b")}


def test_a_method_out_of_time_does_not_say_that_there_is_no_plan() -> None:
    names = [f"t{i}" for i in range(7)]
    costs = CostTable(star(devices("a", "b")), tuple(mode(n, d, 1.0) for n in names for d in "ab"))
    with pytest.raises(InfeasibleError, match="is not decided") as error:
        solve(
            loop(*names),
            costs,
            limits=Limits(period_s=8.0, max_lanes=2),
            method="exhaustive",
            time_limit_s=1e-6,
        )
    assert error.value.conflict == ()


def test_too_few_lanes_say_how_many_would_do() -> None:
    costs = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), mode("y", "b", 1.0)))
    with pytest.raises(InfeasibleError, match="max_lanes") as error:
        solve(loop("x", "y"), costs, limits=Limits(max_lanes=1))
    assert error.value.conflict[0] == {
        "kind": "lanes",
        "name": "loop",
        "need": 2,
        "limit": 1,
        "unit": "lanes",
    }


def test_explaining_does_not_take_for_ever() -> None:
    names = [f"t{i}" for i in range(40)]
    modes = tuple(mode(n, d, 1.0 + (i % 7)) for i, n in enumerate(names) for d in "abcd")
    costs = CostTable(star(devices(*"abcd", lanes=4)), modes)
    began = time.monotonic()
    with pytest.raises(InfeasibleError):
        solve(
            loop(*names),
            costs,
            limits=Limits(period_s=1.0, pin=dict.fromkeys(names[:20], "a")),
            time_limit_s=2.0,
        )
    assert time.monotonic() - began < 60.0  # it was ten minutes a program once


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
    for module in (iis, limit_sets, time_limit):
        monkeypatch.setattr(module, "time", clock)
    modes = tuple(mode(t, d, 2.0) for t in "xyz" for d in "ab")
    costs = CostTable(star(devices("a", "b")), modes)
    limits = Limits(period_s=1.0, pin=dict.fromkeys("xyz", "a"), max_lanes=1, power_w=100.0)
    error = iis.explain(loop(*"xyz"), costs, limits, deadline=0.0)
    assert 0 < len(solved) <= math.ceil(iis.LEAST_S / 0.4)  # none begins after it
    assert max(solved) <= iis.LEAST_S
    assert "one of these has to give" in str(error)  # no longer said to be a smallest set
