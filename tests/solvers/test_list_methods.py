"""LSHS: loads as replayed, fewer bytes moved. Linear clustering: merging lengthens nothing."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.solver.instances import blocks, branches, large
from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.methods import lshs
from pearl.solvers.methods.linear_clustering import find_clusters, merge_clusters, spans_s
from pearl.solvers.model.dag_instance import DagInstance, build_instance, makespan_spaces
from pearl.solvers.model.list_schedule import Schedule
from pearl.testing.graphs import devices, mode, star, tasks
from pearl_devices import Link, Platform

Case = tuple[TaskGraph, CostTable]


def instance(case: Case) -> DagInstance:
    (space,) = makespan_spaces(Problem(*case, Limits(), "makespan"))
    return build_instance(space)


def device_of(made: Schedule, task: str) -> str:
    (u,) = (u for u, unit in enumerate(made.it.space.expansion.units) if task in unit)
    place = made.taken[u]
    assert place is not None
    return made.mode(u, place[0]).device


def replayed(made: Schedule, graph: TaskGraph) -> dict[str, dict[str, float]]:
    """Bytes that devices keep, receive and send if the tasks of a schedule run one after the
    other, and an array goes to a device once."""
    loads = {key: dict.fromkeys(made.widths, 0.0) for key in ("kept", "received", "sent")}
    where = {t.name: device_of(made, t.name) for t in graph.tasks}
    size: dict[str, float] = defaultdict(float)
    for edge in graph.edges:
        size[edge.src] = max(size[edge.src], edge.bytes)
    for task in graph.tasks:
        home = where[task.name]
        loads["kept"][home] += size[task.name]
        for other in {where[e.dst] for e in graph.edges if e.src == task.name} - {home}:
            loads["kept"][other] += size[task.name]
            loads["received"][other] += size[task.name]
            loads["sent"][home] += size[task.name]
    return loads


def first_idle(it: DagInstance) -> Schedule:
    """Each firing in the lane that is free first, whatever it reads."""
    made = Schedule(it)
    free: dict[str, float] = defaultdict(float)
    for v in it.order:
        options = it.space.options[it.unit[v]]
        place = min(made.places(v), key=lambda p: (free[options[p[0]].device], p))
        free[options[place[0]].device] = made.put(v, place)
    return made


CASES = {
    "product": blocks("product", 33, 4),
    "gradient": blocks("gradient", 30, 4),
    "layered": large(3, 1.0, tasks=60, devices=5, shape="layered"),
}


@pytest.mark.parametrize("case", CASES)
def test_simulated_loads_are_those_of_a_replay_byte_for_byte(case: str) -> None:
    simulated = lshs.simulate(instance(CASES[case]))
    assert simulated is not None
    made, loads = simulated
    for key, expected in replayed(made, CASES[case][0]).items():
        assert getattr(loads, key) == pytest.approx(expected, rel=1e-12), key


@pytest.mark.parametrize("case", ["product", "gradient"])
def test_block_products_move_half_the_bytes_of_first_idle_and_copy_a_quarter(case: str) -> None:
    graph, _ = CASES[case]
    simulated = lshs.simulate(instance(CASES[case]))
    assert simulated is not None
    other = replayed(first_idle(instance(CASES[case])), graph)
    loads = simulated[1]
    made_bytes = sum(
        max(e.bytes for e in graph.edges if e.src == t) for t in {e.src for e in graph.edges}
    )
    assert sum(loads.sent.values()) <= sum(other["sent"].values()) / 2
    added, others = (sum(kept.values()) - made_bytes for kept in (loads.kept, other["kept"]))
    assert 0 <= added <= others / 4


def chains(data: st.DataObject) -> Case:
    """Tasks whose edges lead to later ones, on three equal devices."""
    n = data.draw(st.integers(2, 9))
    names = [f"t{i}" for i in range(n)]
    places = devices("a", "b", "c", lanes=4, width=4)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    edges = [
        Edge(names[i], names[j], bytes=data.draw(st.floats(0.0, 5.0)))
        for i, j in pairs
        if data.draw(st.booleans())
    ]
    seconds = [data.draw(st.floats(0.1, 5.0)) for _ in names]
    modes = tuple(mode(t, d.name, s) for t, s in zip(names, seconds, strict=True) for d in places)
    return TaskGraph("g", tasks(*names), tuple(edges)), CostTable(star(places), modes)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_clusters_are_paths_that_share_no_task_and_merging_lengthens_nothing(
    data: st.DataObject,
) -> None:
    it = instance(case := chains(data))
    clusters = find_clusters(it)
    assert sorted(u for cluster in clusters for u in cluster) == list(range(len(case[0].tasks)))
    names = [unit[0] for unit in it.space.expansion.units]
    joined = {(e.src, e.dst) for e in case[0].edges}
    for cluster in clusters:
        assert all((names[a], names[b]) in joined for a, b in pairwise(cluster))
    groups = merge_clusters(it, clusters)
    assert sorted(u for group in groups for u in group) == list(range(len(names)))
    assert spans_s(it, groups)[1] <= spans_s(it, clusters)[1] * (1 + 1e-12)


def test_four_branches_on_four_lanes_take_a_quarter_of_one_lane() -> None:
    graph, costs = branches(4, 20, 4)
    plan = solve(graph, costs, objective="makespan", method="linear_clustering")
    assert plan.value == pytest.approx(22.0)  # 82 tasks of a second, one lane: 82 s


def test_it_declines_where_messages_take_longer_than_the_work() -> None:
    names = ("a", "b", "c", "d")
    edges = [Edge("a", t, bytes=100.0) for t in "bc"] + [Edge(t, "d", bytes=100.0) for t in "bc"]
    two = devices("x", "y", lanes=1, width=1)
    slow = Platform("slow", two, (Link("x", "y", 0.0, 10.0, paid_by="nobody"),))
    costs = CostTable(slow, tuple(mode(t, d.name, 1.0) for t in names for d in two))
    graph = TaskGraph("diamond", tasks(*names), tuple(edges))
    plan = solve(graph, costs, objective="makespan", method="linear_clustering")
    assert plan.value == pytest.approx(4.0)
    assert len({t.device for t in plan.tasks}) == 1
