"""Memory of a unit, tasks apart, lane terms and windows: every method, against enumeration."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from pearl import (
    CostTable,
    Device,
    Edge,
    Fusion,
    InfeasibleError,
    Limits,
    Link,
    Mode,
    Platform,
    SpecError,
    Task,
    TaskGraph,
    solve,
)
from pearl.graph.cycle_ratio import howard
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers import find_method
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.testing.exhaustive import _every_order
from pearl.testing.graphs import random_limited
from pearl.verification import check_plan


def pool(seed: int, *, firings: int = 1, terms: bool = True) -> tuple[TaskGraph, CostTable, Limits]:
    """A loop of two to four tasks on a pool of four units in two or three lanes, with all rules."""
    r = random.Random(seed)
    names = [f"t{i}" for i in range(r.randint(2, 4))]
    edges = [Edge(a, b) for a, b in pairwise(names)]
    back = Edge(names[-1], "sync", consumption=firings)
    on = Edge("sync", names[0], firings, 1, tokens_seq=firings, limit="policy_lag")
    tasks = (*map(Task, names), Task("sync"))
    units = Device("pool", width=4, max_lanes=r.choice([2, 3]), unit_memory_bytes=10.0)
    modes = [Mode.of("sync", "pool", r.choice([0.0, 0.1]))]
    for n in names:
        for width in r.sample([1, 2, 3, 4], 2):
            seconds = r.uniform(1, 4) / width**0.8
            kept = r.choice([0.0, 2.0, 4.0, 5.0])
            modes.append(Mode.of(n, "pool", seconds, width=width, unit_bytes=kept))
    pairs = [(a, b) for a in (*names, "sync") for b in names if a != b]
    apart, shared = ({p: r.uniform(0.0, 1.0) for p in r.sample(pairs, 2)} for _ in range(2))
    costs = CostTable(Platform("p", (units,)), tuple(modes), {}, *([apart, shared] * terms))
    limits = Limits(
        policy_lag=r.choice([0, 1]), apart=(tuple(r.sample(names, 2)),) if r.random() < 0.3 else ()
    )
    return TaskGraph("pool", tasks, (*edges, back, on)), costs, limits


def outcome(method: str, given: tuple[TaskGraph, CostTable, Limits], objective: str) -> float:
    graph, costs, limits = given
    try:
        plan = solve(graph, costs, limits=limits, method=method, objective=objective)
    except InfeasibleError:
        return float("inf")
    check_plan(plan, Problem(graph, costs, limits, objective))
    return plan.value if objective == "makespan" else plan.period_s


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", range(30))
def test_milp_finds_what_enumeration_finds(seed: int) -> None:
    given = pool(seed, firings=1 + seed % 2)
    best = outcome("pearl.testing.exhaustive", given, "throughput")
    assert outcome("milp", given, "throughput") == pytest.approx(best)


@pytest.mark.parametrize("method", ["heft", "tabu", "cpsat"])
def test_no_other_method_breaks_a_rule_or_beats_enumeration(method: str) -> None:
    if method == "cpsat":
        pytest.importorskip("ortools")
    for seed in range(8):
        given = pool(seed)
        for objective in find_method(method).objectives:
            best = outcome("pearl.testing.exhaustive", given, objective)
            assert outcome(method, given, objective) >= best * (1 - 1e-9)
            if method == "cpsat":
                assert outcome(method, given, objective) == pytest.approx(best)


def test_no_lane_holds_more_than_a_unit_has() -> None:
    together = {"a": 6.0, "b": 5.0}
    graph = TaskGraph("two", (Task("a"), Task("b")), (Edge("a", "b"), Edge("b", "a", tokens_seq=1)))
    modes = [Mode.of(t, "pool", 1.0, width=w, unit_bytes=together[t]) for t in "ab" for w in (1, 2)]

    def table(lanes: int, unit: float) -> CostTable:
        units = Device("pool", width=4, max_lanes=lanes, unit_memory_bytes=unit)
        return CostTable(Platform("p", (units,)), tuple(modes))

    plan = solve(graph, table(2, 10.0))
    assert plan.task("a").lane != plan.task("b").lane
    assert solve(graph, table(2, 11.0)).task("a").lane == plan.task("a").lane  # one lane is enough
    crowded = replace(plan, tasks=tuple(replace(t, lane="pool.0") for t in plan.tasks))
    lanes = (replace(plan.lanes[0], order=plan.lanes[0].order + plan.lanes[1].order),)
    with pytest.raises(SpecError, match="11 bytes on each unit; a unit has 10 bytes"):
        check_plan(replace(crowded, lanes=lanes), Problem(graph, table(2, 10.0)))
    apart = Limits(apart=(("a", "b"),))
    with pytest.raises(SpecError, match=r"apart a, b: its lanes are pool\.0"):
        check_plan(replace(crowded, lanes=lanes), Problem(graph, table(2, 11.0), apart))


def test_apart_is_never_one_call_nor_one_lane() -> None:
    graph = TaskGraph(
        "two",
        (Task("a"), Task("b")),
        (Edge("a", "b"), Edge("b", "a", tokens_seq=1)),
        fusions=(Fusion("ab", ("a", "b")),),
    )
    units = Device("pool", width=2, max_lanes=2)
    modes = [Mode.of(t, "pool", 1.0) for t in ("a", "b", ("a", "b"))]
    costs = CostTable(Platform("p", (units,)), tuple(modes))
    assert solve(graph, costs).task("a").fused_with == ("b",)
    plan = solve(graph, costs, limits=Limits(apart=(("a", "b"),)))
    assert plan.task("a").lane != plan.task("b").lane


def test_no_order_beats_the_bound_with_windows() -> None:
    """All orders of small lanes, of graphs with rates and of streamed pools."""
    tighter = 0
    for seed in range(24):
        graph, costs, limits = random_limited(seed, most_tasks=4)
        if seed % 2:
            graph, costs, limits = pool(seed, firings=2)
        try:
            every = list(assignments(every_space(Problem(graph, costs, limits))))
        except InfeasibleError:
            continue
        for a in random.Random(seed).sample(every, min(6, len(every))):
            timed = build_timed_graph(a)
            best = _every_order(timed)
            if best is None:
                continue
            assert best.period_s >= timed.order_bound_s * (1 - 1e-9)
            without = max(howard(len(timed.names), timed.arcs)[0], *timed.loads_s.values())
            tighter += timed.order_bound_s > without * (1 + 1e-9)
    assert tighter > 5


def test_a_streamed_pipeline_is_proved_with_its_filling_and_draining() -> None:
    """Sum of one firing each + (firings − 1) · slowest lane, by hand."""
    graph = TaskGraph(
        "streamed",
        (Task("a"), Task("b"), Task("sync")),
        (
            Edge("a", "b"),
            Edge("b", "sync", consumption=16),
            Edge("sync", "a", 16, 1, tokens_seq=16),
        ),
    )
    units = Device("pool", width=2, max_lanes=2)
    modes = (Mode.of("a", "pool", 2.0), Mode.of("b", "pool", 3.0), Mode.of("sync", "pool", 0.0))
    plan = solve(graph, CostTable(Platform("p", (units,)), modes))
    assert plan.period_s == pytest.approx(2 + 3 + 15 * 3)
    assert plan.status == "optimal"


def test_a_sync_beside_the_rollout_that_moves_no_bytes_is_told() -> None:
    def loop(into: float, group: str | None) -> TaskGraph:
        tasks = Task("train", group=group), Task("sync", group=group), Task("rollout")
        edges = (
            Edge("train", "sync", bytes=into),
            Edge("sync", "rollout", bytes=8.0, tokens_seq=1, limit="policy_lag"),
            Edge("rollout", "train"),
        )
        return TaskGraph("loop", tasks, edges)

    platform = Platform("p", (Device("a"), Device("b")), (Link("a", "b", 0.0, 1.0),))
    seconds = {"train": {"a": 1.0}, "sync": {"a": 0.0, "b": 0.0}, "rollout": {"b": 1.0}}
    costs = CostTable.from_seconds(platform, seconds)
    note = solve(loop(0.0, None), costs).note
    assert "weights move at no cost: sync and rollout run on b" in note
    assert "train → sync" in note
    assert solve(loop(8.0, None), costs).note == ""
    assert solve(loop(0.0, "trainer"), costs).note == ""
