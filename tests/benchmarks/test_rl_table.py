"""The rules of the solver benchmark's table of training loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from benchmarks.solver import rl
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.testing.graphs import devices, star
from tests.graphs import dqn, dqn_costs
from tests.solvers import test_pearl_original as original


def renamed(graph: TaskGraph) -> TaskGraph:
    """The composer's graph under our names of tasks."""
    names = {
        "sample": "replay_sample",
        "train": "update",
        "priorities": "replay_update",
        "insert": "replay_insert",
    }
    tasks = tuple(replace(t, name=names[t.name]) for t in graph.tasks)
    edges = tuple(replace(e, src=names[e.src], dst=names[e.dst]) for e in graph.edges)
    return replace(graph, tasks=tasks, edges=edges)


def test_the_greedy_rule_picks_the_composers_pair() -> None:
    graph, costs = renamed(original.graph()), original.costs()
    names = dict(
        zip(
            original.TASKS,
            ("replay_update", "replay_insert", "replay_sample", "update"),
            strict=True,
        )
    )
    table = replace(
        costs,
        modes=tuple(replace(m, tasks=(names[m.tasks[0]],)) for m in costs.modes),
        pair_extra_s={},
    )
    case = rl.Case("dqn", "small", "pearl", graph, table, Limits())
    found = rl.greedy_pins(case)
    assert found is not None
    pins, _ = found
    assert (pins["replay_sample"], pins["update"]) == ("CPU", "GPU1")


def test_the_greedy_rule_leaves_transfers_out_and_is_valued_with_them() -> None:
    graph = dqn(4)
    platform = star(devices("cpu", "acc"), latency_s=1e-3)
    costs = dqn_costs(platform, {"cpu": 1.0, "acc": 2.0})
    acting = {("inference",), ("env_step",)}
    kept = tuple(m for m in costs.modes if m.device == "cpu" or m.tasks not in acting)
    costs = replace(costs, modes=kept)
    case = rl.Case("dqn", "small", "star", graph, costs, Limits())
    found = rl.greedy_pins(case)
    assert found is not None
    pins, store = found
    assert {t for t, d in pins.items() if d == "acc"} == {
        "replay_insert",
        "replay_sample",
        "replay_update",
        "update",
        "param_sync",
    }
    assert store == "acc"  # two of its three users are there
    greedy, best = (rl.solved(case, "throughput", p) for p in (pins, None))
    assert greedy is not None
    assert best is not None
    assert greedy.value < 0.2 * best.value
    assert {t.device for t in best.tasks} == {"cpu"}


def test_ours_is_at_least_as_good_in_every_row_of_the_small_table() -> None:
    rows = list(islice(rl.cases(quick=True), 4))  # without the host
    assert {c.platform for c in rows} == {"cpu_gpu"}
    assert [c.algorithm for c in rows] == ["dqn", "ddpg", "sac", "ppo"]
    assert rl.greedy_pins(rows[3]) is None  # PPO has no replay
    for case in rows[:3]:  # PPO's solves take their whole time limit
        found, _ = rl.plans_of(case)
        table = {name: rl.figures(plans) for name, plans in found.items()}
        for per_s, per_j in table.values():
            assert per_s is not None
            assert per_j is not None
            assert per_s <= (table["ours"][0] or 0.0) * (1 + 1e-6)
            assert per_j <= (table["ours"][1] or 0.0) * (1 + 1e-6)
