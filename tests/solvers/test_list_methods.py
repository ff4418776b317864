"""LSHS: loads as replayed, fewer bytes moved. Linear clustering: merging lengthens nothing, and
gradient steps with two critics learn the same bits on its lanes."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pearl
from benchmarks.literature.lists import CLUSTERING, Case, compare, replay, set_apart, to_instance
from benchmarks.solver.instances import blocks, branches, large
from examples import lshs
from examples.linear_clustering import find_clusters, find_spans, merge_clusters
from pearl import solve
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.testing import KernelKindContract
from pearl.testing.graphs import devices, mode, star, tasks
from pearl_devices import Link, Platform, kernel
from tests.lanes import SECONDS, differing, planned, replay_spec, trained

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


def test_the_cost_of_a_device_is_the_sum_of_the_highest_loads() -> None:
    """Kept, received and sent bytes, counted by hand."""
    x, y = (("x", 0), "a", 3.0), (("y", 0), "b", 2.0)
    loads = lshs.ByteLoads.of("abc")
    loads.place("a", 4.0, [])
    assert loads.cost_bytes("a", 2.0, [x]) == 4 + 2
    assert loads.cost_bytes("b", 2.0, [x]) == (2 + 3) + 3 + 3
    loads.place("b", 2.0, [x])
    assert loads.cost_bytes("b", 1.0, [x]) == (5 + 1) + 3 + 3  # the copy of x is there
    assert loads.cost_bytes("c", 1.0, [x, y]) == (1 + 5) + 5 + (3 + 3)
    assert loads.kept == {"a": 4.0, "b": 5.0, "c": 0.0}
    assert [*loads.received.values(), *loads.sent.values()] == [0.0, 3.0, 0.0, 3.0, 0.0, 0.0]


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
    plan = solve(graph, costs, objective="makespan", method=CLUSTERING)
    assert plan.value == pytest.approx(22.0)  # 82 tasks of a second, one lane: 82 s


def test_it_declines_where_messages_take_longer_than_the_work() -> None:
    names = ("a", "b", "c", "d")
    edges = [Edge("a", t, bytes=100.0) for t in "bc"] + [Edge(t, "d", bytes=100.0) for t in "bc"]
    two = devices("x", "y", lanes=1, width=1)
    slow = Platform("slow", two, (Link("x", "y", 0.0, 10.0, paid_by="nobody"),))
    costs = CostTable(slow, tuple(mode(t, d.name, 1.0) for t in names for d in two))
    graph = TaskGraph("diamond", tasks(*names), tuple(edges))
    plan = solve(graph, costs, objective="makespan", method=CLUSTERING)
    assert plan.value == pytest.approx(4.0)
    assert len({t.device for t in plan.tasks}) == 1


class TestCritic(KernelKindContract):
    kernel = kernel(
        "examples.twin_critics.branches:CRITIC1",
        {"obs": 3, "act": 1, "actor": (3, 4, 1), "critic1": (4, 5, 1), "critic2": (4, 5, 1)},
        args={"of": "td3"},
        batch=8,
        steps=2,
        policy_delay=2,
        number=1,
        followed=1,
    )


LARGE = {"act": 255e-6, "value": 310e-6, "critic": 1200e-6, "climb": 165e-6, "learn": 37e-6}
SMALL = {"act": 13e-6, "value": 10e-6, "critic": 25e-6, "climb": 6e-6, "learn": 8e-6}
"""Seconds of TD3's kernels with 256 and with 16 units and rows, rounded (2 × AMD EPYC, 2026)."""


@cache
def split_critics(name: str, large: bool = True) -> Any:
    """The system and linear clustering's plan of an algorithm whose critics are two tasks."""
    envs = {"num_envs": 2 if name == "td3" else 1, "replay_ratio": 1}
    spec = replay_spec(f"examples.twin_critics.{name}", env="Pendulum-v1", **envs)
    timed = LARGE if large else SMALL
    seconds = SECONDS | {f"{t}{i}": s for t, s in timed.items() for i in (1, 2)} | timed
    quick = dict.fromkeys(("act", "step", "store", "sample"), 3e-6)
    return planned(spec, seconds=seconds | quick, cores=2, method=CLUSTERING)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_two_critics_on_two_lanes_learn_what_one_lane_and_the_shipped_update_learn(
    name: str,
) -> None:
    system, plan = split_critics(name)
    lanes = {t.task: t.lane for t in plan.tasks}
    assert lanes["critic1"] != lanes["critic2"]
    assert len(set(lanes.values())) == 2
    steps = 64 + 30 * system.algorithm.num_envs
    one, two = (trained(system, plan, hosting, steps=steps) for hosting in ("one", "threads"))
    assert differing(one, two) == []
    own = {**system.raw, "algorithm": {**system.raw["algorithm"], "name": name}}
    whole = pearl.compile(own, set={"limits.max_lanes": 1}, seed=3, emulate=True)
    whole.train(steps=steps)
    learnt, expected = (t.session.arrays for t in (two, whole))
    assert learnt["learner.critic2.steps"] == 30 * system.algorithm.num_envs
    for array in (n for n in expected if n.startswith("learner.")):
        np.testing.assert_allclose(learnt[array], expected[array], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("large", "lanes"), [(True, 2), (False, 1)])
def test_critics_stay_together_where_a_message_takes_longer_than_a_branch(
    large: bool, lanes: int
) -> None:
    _, plan = split_critics("td3", large)
    graph, costs = set_apart(plan.problem)
    found = solve(graph, costs, method=CLUSTERING)
    assert len({t.device for t in found.tasks}) == lanes


def test_an_iteration_must_be_one_step_of_the_actor() -> None:
    spec = replay_spec("examples.twin_critics.td3", env="Pendulum-v1", replay_ratio=1)
    with pytest.raises(
        pearl.SpecError, match=r"given 8 gradient steps .* num_envs × replay_ratio to 2"
    ):
        pearl.plan(pearl.load(spec))
