"""LSHS: loads as replayed, fewer bytes moved. Linear clustering: merging lengthens nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.literature.lists import Case, compare, replay, to_instance
from benchmarks.solver.instances import blocks, branches, large
from pearl import solve
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.solvers.methods import lshs
from pearl.solvers.methods.linear_clustering import find_clusters, find_spans, merge_clusters
from pearl.testing.graphs import devices, mode, star, tasks
from pearl_devices import Link, Platform

CASES = {
    "product": blocks("product", 33, 4),
    "gradient": blocks("gradient", 30, 4),
    "layered": large(3, 1.0, tasks=60, devices=5, shape="layered"),
}


@pytest.mark.parametrize("case", CASES)
def test_simulated_loads_are_those_of_a_replay_byte_for_byte(case: str) -> None:
    simulated = lshs.simulate(to_instance(CASES[case]))
    assert simulated is not None
    made, loads = simulated
    for key, expected in replay(made, CASES[case][0]).items():
        assert getattr(loads, key) == pytest.approx(expected, rel=1e-12), key


@pytest.mark.parametrize("case", ["product", "gradient"])
def test_block_products_move_half_the_bytes_of_first_idle_and_copy_a_quarter(case: str) -> None:
    sent, added = compare(CASES[case])
    assert 0 < sent <= 1 / 2
    assert 0 < added <= 1 / 4


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


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_clusters_are_paths_that_share_no_task_and_merging_lengthens_nothing(
    data: st.DataObject,
) -> None:
    it = to_instance(case := chains(data))
    clusters = find_clusters(it)
    assert sorted(u for cluster in clusters for u in cluster) == list(range(len(case[0].tasks)))
    names = [unit[0] for unit in it.space.expansion.units]
    joined = {(e.src, e.dst) for e in case[0].edges}
    for cluster in clusters:
        assert all((names[a], names[b]) in joined for a, b in pairwise(cluster))
    groups = merge_clusters(it, clusters)
    assert sorted(u for group in groups for u in group) == list(range(len(names)))
    before, order = find_spans(it, clusters)
    after, _ = find_spans(it, groups, order)
    assert max(end for _, end in after) <= max(end for _, end in before) * (1 + 1e-12)


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
