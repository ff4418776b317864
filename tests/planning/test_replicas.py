"""Replicas: how environments are shared out, what a split graph is, and what plans make of it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl import solve
from pearl.algorithms import algorithm
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Replica, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plan_validation import completions
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem, split_costs
from pearl.planning.replicas import (
    GRAINS,
    ReplicaSplit,
    enumerate_splits,
    resize_kernel,
    share_choices,
    split_graph,
    split_limits,
    split_of,
)
from pearl.solvers.methods.enumeration import every_space
from pearl.solvers.model.search_space import search_spaces
from pearl.spec.reading import load
from pearl.testing.graphs import devices, mode, star
from pearl.verification import check_plan
from pearl_devices import kernel
from tests.graphs import act_and_learn, share_modes
from tests.schemas.test_schemas import problems as schema_problems

FAST_AND_SLOW = CostTable(
    star(devices("a", "b", lanes=2)),
    (
        *share_modes("act", "a", {8: 8.0, 7: 7.0, 6: 6.0, 5: 5.0, 4: 4.0}, 8),
        *share_modes("act", "b", {8: 14.0, 4: 7.0, 3: 5.0, 2: 4.0, 1: 2.0}, 8),
        mode("learn", "a", 3.0),
    ),
)
"""`act` takes 1 s an environment on a and more on b; shares of 5 and 3 take 5 s on each."""


def ring_with_lag() -> TaskGraph:
    """Acting and learning overlap: the period is the longest of the tasks."""
    graph = act_and_learn()
    edges = tuple(replace(e, tokens_seq=2) if e.dst == "act" else e for e in graph.edges)
    return replace(graph, edges=edges)


@given(st.integers(2, 64), st.integers(2, 6))
def test_shares_add_up_and_fall(environments: int, most: int) -> None:
    found = share_choices(environments, most)
    assert len(found) == len(set(found))
    for shares in found:
        assert sum(shares) == environments
        assert 2 <= len(shares) <= most
        assert list(shares) == sorted(shares, reverse=True)
        assert shares[-1] >= 1
    for copies in range(2, min(most, environments) + 1):
        assert any(len(s) == copies and s[0] - s[-1] <= 1 for s in found)


@pytest.mark.parametrize("environments", [2, 3, 8, 9, 17, 20])
def test_shares_are_those_of_all_ways_that_keep_the_rules(environments: int) -> None:
    """Falling shares, nearly equal or in eighths, with the remainder in the first."""
    unit, allowed = math.ceil(environments / GRAINS), set()
    for copies in (2, 3):
        for shares in itertools.product(range(1, environments), repeat=copies):
            grained = (shares[0] - environments % unit, *shares[1:])
            if sum(shares) != environments or list(shares) != sorted(shares, reverse=True):
                continue
            whole = all(n % unit == 0 and n > 0 for n in grained)
            if shares[0] - shares[-1] <= 1 or (
                whole and list(grained) == sorted(grained, reverse=True)
            ):
                allowed.add(shares)
    assert set(share_choices(environments, 3)) == allowed


def test_every_split_has_its_search_spaces() -> None:
    limits = Limits(replicas={"act": 3, "learn": 2})
    for envs in (3, 8, 9):
        graph = act_and_learn(envs, both=True)
        names = tuple(mode(t, "a", 1.0) for t in ("act", "learn")) + tuple(
            replace(mode(t, "a", 1.0), share=n) for t in ("act", "learn") for n in range(1, envs)
        )
        problem = Problem(graph, CostTable(star(devices("a")), names), limits)
        for spaces in (search_spaces(problem), every_space(problem)):
            splits = [split_of(s.expansion.graph) for s in spaces]
            assert splits == enumerate_splits(graph, limits)


@pytest.mark.parametrize(("first", "second"), [(2, 4), (4, 2), (3, 5), (3, 3)])
def test_tasks_that_are_split_together_have_as_many_copies_as_the_smaller_limit(
    first: int, second: int
) -> None:
    graph = algorithm("dqn").graph(load(SPEC))
    limits = Limits(replicas={"act": first, "step": second})
    copies: dict[tuple[str, ...], int] = {}
    for split in enumerate_splits(graph, limits):
        copies[split.tasks] = max(len(split.shares), copies.get(split.tasks, 0))
    assert copies == {
        (): copies[()],
        ("act",): first,
        ("step",): second,
        ("act", "step"): min(first, second),
    }


def test_a_split_graph_shares_out_bytes_states_and_memory() -> None:
    graph = split_graph(act_and_learn(), ReplicaSplit(("act",), (5, 3)))
    assert [t.name for t in graph.tasks] == ["act#0", "act#1", "learn"]
    assert graph.tasks[1].part == Replica("act", 1, (5, 3))
    assert graph.states == {"envs#0": 5e6, "envs#1": 3e6, "net": 1e6}
    assert graph.tasks[0].kernel.resident_bytes == pytest.approx(5e3)
    size = {(e.src, e.dst): e.bytes for e in graph.edges}
    assert size["act#0", "learn"] == pytest.approx(500.0)
    assert size["act#1", "learn"] == pytest.approx(300.0)
    assert size["learn", "act#0"] == size["learn", "act#1"] == 100.0  # a whole copy for each
    assert ("act#0", "act#1") not in size
    assert set(graph.repetition.values()) == {1}


def test_copies_of_two_split_tasks_talk_pairwise() -> None:
    graph = split_graph(act_and_learn(both=True), ReplicaSplit(("act", "learn"), (4, 4)))
    assert {(e.src, e.dst) for e in graph.edges if e.src != e.dst} == {
        ("act#0", "learn#0"), ("learn#0", "act#0"), ("act#1", "learn#1"), ("learn#1", "act#1"),
    }  # fmt: skip


def test_limits_hold_for_every_copy() -> None:
    limits = Limits(
        pin={"act": "a"}, together=(("act", "learn"),), replicas={"act": 2}, policy_lag=1
    )
    torn = split_limits(limits, ReplicaSplit(("act",), (4, 4)))
    assert torn.pin == {"act#0": "a", "act#1": "a"}
    assert torn.together == (("act#0", "learn"), ("act#1", "learn"))
    assert torn.policy_lag == 1


def test_pair_terms_of_copies_add_up_to_those_of_the_whole_tasks() -> None:
    a = ("act", ("a", "v", 1))
    b = ("learn", ("a", "v", 1))
    costs = replace(FAST_AND_SLOW, pair_extra_s={(a, b): 0.8, (b, a): 1.6})
    table = split_costs(costs, ReplicaSplit(("act",), (5, 3)))
    assert sum(table.pair_extra_s.values()) == pytest.approx(0.8 + 1.6)
    assert table.pair_extra_s[("act#0", a[1]), b] == pytest.approx(0.5)


def test_kernels_of_known_kinds_are_counted_anew() -> None:
    whole = kernel("inference.dqn", envs=8, layers=(4, 64, 2), obs=4, act=0)
    part = resize_kernel(whole, 2, 8)
    assert part.dims["envs"] == 2
    assert part.flops == pytest.approx(whole.flops / 4)
    assert part.bytes_in > whole.bytes_in / 4  # the weights are read in full


@pytest.mark.parametrize("method", ["milp", "pearl.testing.exhaustive"])
def test_uneven_shares_balance_a_fast_and_a_slow_lane(method: str) -> None:
    graph = ring_with_lag()
    alone = solve(graph, FAST_AND_SLOW, method=method)
    assert alone.period_s == pytest.approx(8.0)
    limits = Limits(replicas={"act": 2})
    plan = solve(graph, FAST_AND_SLOW, limits=limits, method=method)
    assert plan.period_s == pytest.approx(5.0)
    assert plan.status == "optimal"
    rows = [t for t in plan.tasks if t.task == "act"]
    assert [(t.replica, t.replicas, t.shares, t.device) for t in rows] == [
        (0, 2, (5, 3), "a"),
        (1, 2, (5, 3), "b"),
    ]
    assert plan.rates["env_steps_per_s"] == pytest.approx(8 / 5.0)


def split_plan() -> Plan:
    return solve(ring_with_lag(), FAST_AND_SLOW, limits=Limits(replicas={"act": 2}))


def test_a_plan_with_replicas_survives_json_its_schema_and_its_check() -> None:
    plan = split_plan()
    value = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert schema_problems(value, "plan") == []
    again = load_plan(value)
    assert again == plan
    assert plan.problem is not None
    check_plan(again, plan.problem)
    named = {e.task for k in again.lanes for e in k.order if k.width > 0}
    assert named == {"act", "learn"}
    pairs = {(c.src, c.src_replica, c.dst, c.dst_replica) for c in again.edges}
    assert ("act", 1, "learn", 0) in pairs


def test_the_clock_of_a_plan_with_replicas_is_its_period() -> None:
    plan = split_plan()
    ends = completions(plan, ring_with_lag(), FAST_AND_SLOW.platform, 40)
    assert (ends[-1] - ends[9]) / 30 == pytest.approx(plan.period_s)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shares": (6, 3)}, "8 in all"),
        ({"shares": (5, 2, 1)}, "one share each"),
        ({"replica": 0}, r"replicas \[0, 0\]"),
    ],
)
def test_replicas_that_do_not_add_up_are_refused(change: dict[str, object], text: str) -> None:
    plan = split_plan()
    rows = tuple(replace(t, **change) if t.task == "act" else t for t in plan.tasks)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=text):
        check_plan(replace(plan, tasks=rows), Problem(ring_with_lag(), FAST_AND_SLOW))


def test_a_task_that_cannot_be_split_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"'learn' cannot be split.*\['act'\]"):
        solve(ring_with_lag(), FAST_AND_SLOW, limits=Limits(replicas={"learn": 2}))
    with pytest.raises(SpecError, match="replicas of act is 0"):
        Limits(replicas={"act": 0})


def test_each_copy_of_a_state_may_lie_elsewhere_but_must_fit() -> None:
    small = star(devices("a", "b", memory_bytes=7e6))
    costs = replace(FAST_AND_SLOW, platform=small)
    with pytest.raises(InfeasibleError, match="memory"):
        solve(ring_with_lag(), costs)
    plan = solve(ring_with_lag(), costs, limits=Limits(replicas={"act": 2}))
    assert plan.period_s == pytest.approx(5.0)


SPEC = {
    "algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64]},
    "platform": "cpu_gpu",
    "limits": {"replicas": {"step": 2, "act": 2}, "policy_lag": 1},
}


def test_algorithms_offer_their_acting_tasks_and_specs_say_how_many_copies() -> None:
    system = load(SPEC)
    graph = algorithm("dqn").graph(system)
    assert {t.name for t in graph.tasks if t.environments} == {"act", "step"}
    costs = build_cost_table(graph, system.platform, system.limits)
    assert {m.share for m in costs.modes if m.tasks == ("step",)} == {None, *range(1, 8)}
    assert {m.share for m in costs.modes if m.tasks == ("learn",)} == {None}
    plan = solve(graph, costs, limits=system.limits, time_limit_s=10)
    check_plan(plan, Problem(graph, costs, system.limits))
    with pytest.raises(SpecError, match=r"limits\.replicas.*envstep"):
        load({**SPEC, "limits": {"replicas": {"envstep": 2}}})
