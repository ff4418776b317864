"""What constructors and functions are given: a value of a wrong kind is an error that names the
field, the value and what is needed; nothing else is ever raised."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.explanation import explain
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planner.planner import pareto, plan
from pearl.planning.costs import CostTable, Mode
from pearl.testing.graphs import devices, loop, mode, star
from pearl_devices import Device, Kernel, Link, Platform
from pearl_devices.validation import explain_misfit, is_names, is_number, is_whole, quote
from pearl_estimators import Estimate

PLATFORM = star(devices("a", "b"))
COSTS = CostTable(PLATFORM, (mode("x", "a", 1.0), mode("y", "b", 1.0)))
GRAPH = loop("x", "y")
WHOLE: tuple[Any, ...] = (
    Task("x", Kernel("k"), reads=("s",)), Edge("x", "y", 2, 2, 1, bytes=1.0),
    Fusion("f", ("x", "y"), Kernel("k")), GRAPH, COSTS.modes[0], COSTS, Estimate(1.0), Limits(),
    PLATFORM.devices[0], PLATFORM.links[0], Kernel("k"),
)  # fmt: skip
HUGE = 10**400
JUNK = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(-(2**70), 2**70),
    st.sampled_from([HUGE, -HUGE, [HUGE], 1e308, -0.0, 1j, b"x", {"s": HUGE}, {1: 2}, object()]),
    st.floats(),
    st.lists(st.one_of(st.text(max_size=2), st.integers(), st.none()), max_size=3),
    st.dictionaries(st.text(max_size=2), st.one_of(st.none(), st.floats()), max_size=2),
    st.sampled_from([np.int64(3), np.float32(2), np.array([1.0]), Fraction(1, 2), (), ((),)]),
)  # fmt: skip


@pytest.mark.parametrize("noun", WHOLE, ids=lambda n: type(n).__name__)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nothing_but_an_error_of_ours_comes_of_a_value_of_a_wrong_kind(noun, data) -> None:
    names = [f.name for f in fields(noun)]
    if isinstance(noun, Device | Link | Kernel):  # their numbers; names are not looked at
        names = [f.name for f in fields(noun) if f.type in ("int", "float")]
    name, value = data.draw(st.sampled_from(names)), data.draw(JUNK)
    try:
        replace(noun, **{name: value})
    except (SpecError, ValueError) as error:
        text = str(error)
        assert text


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Mode("x", "a", "v", 1, Estimate(1.0)), "mode: tasks is 'x'; it must be names"),
    (lambda: Mode((), "a", "v", 1, Estimate(1.0)), r"mode: tasks is \(\); it must be names"),
    (lambda: Mode(("x",), "a", "v", 1, 1.0), "mode of x on 'a': estimate is 1.0; an Estimate"),
    (lambda: Mode(("x",), "a", "v", "1", Estimate(1.0)), "width is '1'; a whole number is"),
    (lambda: Mode(("x",), "a", "v", 1, Estimate(1.0), 0), "share is 0; a whole number above 0"),
    (lambda: CostTable("p", ()), "cost table: platform is 'p'; a Platform is needed"),
    (lambda: CostTable(PLATFORM, (1,)), "cost table: modes has 1; a tuple of Modes is needed"),
    (lambda: replace(COSTS, pair_extra_s={("x", "y"): 1.0}), r"pair_extra_s has \('x', 'y'\);"),
    (lambda: replace(COSTS, pair_extra_s=[]), r"pair_extra_s is \[\]; a mapping is needed"),
    (lambda: Estimate("1"), "estimate: latency_s is '1'; it must be finite and at least 0"),
    (lambda: Estimate(None), "estimate: latency_s is None; it must be finite and at least 0"),
    (lambda: Estimate(1.0, rung="guess"), "rung is 'guess'; it is one of measured, calibra"),
    (lambda: Estimate(1.0, bound_by=3), "bound_by is 3; it is one of compute, memory"),
    (lambda: Device("d", "cpu", width="4"), "device 'd': width is '4'; it must be a whole nu"),
    (lambda: Device("d", "cpu", memory_bytes="1"), "memory_bytes is '1'; it must be finite"),
    (lambda: Device("d", "cpu", figures={"clock_hz": "1"}), "figure clock_hz is '1'; it must"),
    (lambda: Link("a", "b", "1", 1.0), "link a-b: latency_s is '1'; it must be finite and at"),
    (lambda: Kernel("k", flops="1"), "kernel k: flops is '1'; it must be finite and at lea"),
    (lambda: solve("g", COSTS), "graph is 'g'; a TaskGraph is needed"),
    (lambda: solve(GRAPH, None), "costs is None; a CostTable is needed"),
    (lambda: solve(GRAPH, COSTS, limits={}), "limits is {}; a Limits is needed"),
    (lambda: solve(GRAPH, COSTS, seed=0.5), "seed is 0.5; it must be a whole number of at l"),
    (lambda: solve(GRAPH, COSTS, seed=-1), "seed is -1; it must be a whole number of at le"),
    (lambda: solve(GRAPH, COSTS, method=["milp"]), r"method \['milp'\] is unknown; allowed"),
    (lambda: solve(GRAPH, COSTS, objective=3), "objective 3 is unknown; allowed are"),
    (lambda: pareto("g", COSTS), "graph is 'g'; a TaskGraph is needed"),
    (lambda: pareto(GRAPH, COSTS, gap="1"), "gap is '1'; it must be finite and above 0"),
    (lambda: pareto(GRAPH, COSTS, gap=0), "gap is 0; it must be finite and above 0"),
])  # fmt: skip
def test_the_error_says_field_value_and_what_is_needed(make, said) -> None:
    with pytest.raises((SpecError, ValueError), match=said):
        make()


@pytest.mark.parametrize("value", ["5", None, [], 0, -1.0, math.nan, -math.inf, HUGE, True])
def test_a_time_limit_is_seconds_above_zero(value: Any) -> None:
    found = solve(GRAPH, COSTS)
    for call in (solve, pareto):
        with pytest.raises(SpecError, match=r"time_limit_s is .*; it must be seconds above 0"):
            call(GRAPH, COSTS, time_limit_s=value)
    with pytest.raises(SpecError, match=r"time_limit_s is .*; it must be seconds above 0"):
        explain(found, time_limit_s=value)
    with pytest.raises(SpecError, match=r"time_limit_s is .*; it must be seconds above 0"):
        plan("no such spec is looked for", time_limit_s=value)
    with pytest.raises(SpecError, match=r"within is 'x'; it must be a share from 0 to 1"):
        explain(found, within="x")  # type: ignore[arg-type]


def test_lists_and_numbers_of_numpy_are_taken() -> None:
    edges = [Edge("x", "y", np.int64(2), np.int32(1)), Edge("y", "x", 1, 2, np.int64(2))]
    found = [Task("x", Kernel("k"), reads=["s"]), Task("y", Kernel("k"))]  # type: ignore[arg-type]
    graph = TaskGraph("g", found, edges, {"s": np.float32(1)}, env_steps=np.int64(1))  # type: ignore[arg-type]
    assert graph.tasks[0].reads == ("s",)
    assert type(graph.edges[0].production) is int
    assert hash(graph.edges)
    assert dict(graph.repetition) == {"x": 1, "y": 2}
    assert solve(graph, COSTS, time_limit_s=np.float32(5)).to_json()["period_s"] == 3.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(0, 1e30, allow_subnormal=False) | st.sampled_from([0.0, 1e-30, 1e30, 1e308]),
        min_size=6,
        max_size=6,
    ),
    st.sampled_from(["throughput", "power_efficiency", "makespan"]),
)
def test_times_of_any_size_give_a_plan_or_one_of_our_errors(numbers, objective) -> None:
    a, b, c, d, latency, rate = numbers
    times = ("x", "a", a), ("x", "b", b), ("y", "a", c), ("y", "b", d)
    try:
        modes = tuple(
            Mode((task,), device, "v", 1, Estimate(seconds, energy_j=seconds))
            for task, device, seconds in times
        )
        platform = Platform("p", PLATFORM.devices, (Link("a", "b", latency, max(rate, 1e-30)),))
        found = solve(loop("x", "y", size=1e6), CostTable(platform, modes), objective=objective)
    except (SpecError, InfeasibleError):
        return
    except ValueError as error:
        if "; it must be at" in str(error):  # of an Estimate or a Link
            return
        raise
    assert found.period_s >= 0


def test_numbers_too_far_apart_for_a_linear_program_are_named() -> None:
    platform = Platform("p", PLATFORM.devices, (Link("a", "b", 0.0, 1e-10),))
    times = {("x", "a"): 1.0, ("x", "b"): 2.0, ("y", "a"): 2.0, ("y", "b"): 1.0}
    costs = CostTable(platform, tuple(mode(t, d, s) for (t, d), s in times.items()))
    with pytest.raises(SpecError, match=r"a coefficient is [0-9.]+e\+1[6-9], HiGHS"):
        solve(loop("x", "y", size=1e6), costs, method="milp")


def test_kinds_of_values() -> None:
    assert [is_number(v) for v in (1, 0.5, np.float32(1), Fraction(1, 2))] == [True] * 4
    assert not any(map(is_number, ("1", None, True, math.nan, math.inf, HUGE, 1j, [1])))
    assert [is_whole(v) for v in (0, -3, 2**53, -(2**53), np.int8(1))] == [True] * 5
    assert not any(map(is_whole, (1.0, True, np.True_, 2**53 + 1, -(2**53) - 1, "1", None)))
    assert [is_names(v) for v in (("a",), [], "a", ("a", 1))] == [True, True, False, False]
    assert [explain_misfit(v) for v in (0, 1e30, np.float32(1))] == [""] * 3
    assert explain_misfit(1.01e30) == "is 1.01e+30; it must be at most 1e+30"
    assert explain_misfit(1e-31, above=True) == "is 1e-31; it must be at least 1e-30"
    assert explain_misfit(0, above=True) == "is 0; it must be finite and above 0"
    assert [explain_misfit(v, above=True) for v in (1e-30, 1, 1e30)] == [""] * 3
    assert quote("a" * 58) == "'" + "a" * 58 + "'"
    assert quote("a" * 100) == "'" + "a" * 55 + " ..."
    assert (quote(10**40), quote([HUGE * HUGE**20])) == ("a huge number", "a list")
    assert quote(10**40 - 1) == "9" * 40
