"""Rates of the graphs that algorithms build; `graphs.json` of the kept texts has their edges."""

from dataclasses import replace
from fractions import Fraction

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.algorithms.families.replay import Sizes, build
from pearl.graph.sequential import program_order

LAYERS = (4, 64, 64, 2)
SIZES = Sizes(program="CartPole-v1", env_args={}, envs=8, obs=4, act=0, capacity=800,
              prioritised=True, fanout=8, batch=32, n_step=1, replay_ratio=Fraction(1))  # fmt: skip


def dqn(**changes):
    sizes = replace(SIZES, **changes)
    return build("dqn", sizes, networks={"q": LAYERS}, policy="q",
                 losses="pearl.algorithms.dqn:losses", extra={"double": 1})  # fmt: skip


def test_the_sequential_program_acts_then_learns_then_copies():
    assert program_order(dqn(replay_ratio=Fraction(1, 4))) == (
        *("act", "step", "store"),
        *("sample", "learn", "priorities") * 2,
        "sync",
    )


def test_under_uniform_replay_one_firing_does_all_gradient_steps_of_an_iteration():
    graph = dqn(prioritised=False)
    assert set(graph.repetition.values()) == {1}
    assert graph.task("learn").kernel.dim("steps") == 8
    with pytest.raises(KeyError, match="no task 'priorities'"):
        graph.task("priorities")


@pytest.mark.parametrize(
    ("changes", "fusions"),
    [
        ({}, ["learn", "iteration"]),
        ({"prioritised": False}, ["learn", "iteration"]),
        ({"replay_ratio": Fraction(1, 32)}, ["learn", "iteration"]),
        ({"replay_ratio": Fraction(3, 16)}, ["learn"]),  # 2 vector steps and 3 gradient steps
        ({"replay_ratio": Fraction(3, 16), "prioritised": False}, ["learn", "iteration"]),
        ({"normalise": {"normalise_obs": 1}}, ["learn"]),
        ({"groups": 2}, ["learn"]),
        ({"scaled": True}, ["learn"]),
        ({"frames": {"stack": 2, "ends": 9}}, []),
    ],
)
def test_native_calls_of_several_tasks_are_offered_where_they_compute_the_same(changes, fusions):
    graph = dqn(**changes)
    assert [f.name for f in graph.fusions] == fusions
    ranked = ("priorities",) if changes.get("prioritised", True) else ()
    for fusion in graph.fusions:
        whole = tuple(t.name for t in graph.tasks)
        members = ("sample", "learn", *ranked)
        assert fusion.tasks == (members if fusion.name == "learn" else whole)
        assert fusion.kernel.dim("steps") == graph.updates
    envs = 8 // changes.get("groups", 1)
    shared = 0 if "normalise" in changes else envs
    assert [t.environments for t in graph.tasks[:2]] == [envs, shared]
    assert [graph.task(t).kernel.dim("envs") for t in ("act", "sample")] == [envs, 8]


SPACES = {"obs": 3, "actions": 2}
SELF = {(n, n): (1, 1, 1, 0) for n in ("step", "store", "learn", "sync")}
ACTS = {
    ("act", "step"): (1, 1, 0, 0), ("step", "act"): (1, 1, 1, 0),
    ("act", "store"): (1, 1, 0, 0), ("step", "store"): (1, 1, 0, 0),
    ("sync", "act"): (8, 1, 8, 0), ("act", "sync"): (1, 8, 0, 0),
    ("advantages", "learn"): (1, 1, 0, 0),
}  # fmt: skip
WHOLE = {
    ("store", "advantages"): (1, 8, 0, None), ("advantages", "store"): (8, 1, 8, 0),
    ("learn", "sync"): (1, 1, 0, 0), ("sync", "learn"): (1, 1, 1, 0),
}  # fmt: skip
STEPS = {  # three steps behind, with five kept
    ("store", "advantages"): (1, 1, 0, 3), ("learn", "store"): (1, 1, 5, 0),
    ("learn", "sync"): (1, 8, 0, 0), ("sync", "learn"): (8, 1, 8, 0),
    ("learn", "advantages"): (1, 1, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "edges", "fusions"),
    [
        ("a2c", {}, WHOLE, ["rollout", "iteration"]),
        ("a2c", {"returns": {"n_step": 3}}, STEPS, []),
        ("a2c", {"returns": {"n_step": 3}, "normalise_advantages": True}, WHOLE, ["rollout"]),
        ("ppo", {"epochs": 2, "minibatches": 2}, WHOLE, ["rollout", "iteration"]),
        ("ppo", {"epochs": 1, "minibatches": 1, "returns": {"n_step": 3},
                 "normalise_advantages": False}, STEPS, []),
        ("ppo", {"epochs": 1, "minibatches": 1, "returns": {"n_step": 3}, "target_kl": 0.1,
                 "normalise_advantages": False}, WHOLE, ["rollout"]),
        ("ppo", {"epochs": 1, "minibatches": 2, "returns": {"n_step": 3},
                 "normalise_advantages": False}, WHOLE, ["rollout"]),
        ("a2c", {"spaces": {"obs": 3, "choices": [2, 3]}}, WHOLE, []),
        ("a2c", {"normalise": {"observations": True}}, WHOLE, []),
    ],
)  # fmt: skip
def test_a_rollout_is_read_whole_or_step_by_step(name, options, edges, fusions):
    given = {"spaces": SPACES, "num_envs": 4, "rollout_steps": 8, "hidden": [5], **options}
    made = pearl.load({"algorithm": {"name": name, "env": "E-v0", **given}, "platform": "cpu_gpu"})
    graph = algorithm(name).graph(made)
    found = {
        (e.src, e.dst): (e.production, e.consumption, e.tokens_seq, e.reach) for e in graph.edges
    }
    assert found == {**ACTS, **SELF, **edges}
    assert [f.name for f in graph.fusions] == fusions
    steps = options.get("epochs", 1) * options.get("minibatches", 1)
    rows = 32 // options.get("minibatches", 1)
    assert (graph.env_steps, graph.updates, graph.batch) == (32, steps, rows)
    update = graph.task("learn").kernel
    judged = 1 if edges is STEPS else 8
    assert update.dim("batch") == 4 * judged // options.get("minibatches", 1)
    assert (update.dim("steps"), update.dims.get("kept")) == (steps, 5 if edges is STEPS else None)
    ahead = graph.task("advantages").kernel.dims.get("ahead")
    assert ahead == (3 if "returns" in options else None)
    outputs = 5 if "choices" in given["spaces"] else 2
    assert update.layers("actor") == (3, 5, outputs)
    whole = 0 if "normalise" in options else 4
    assert [t.environments for t in graph.tasks[:2]] == [4, whole]


def test_sweeps_over_a_log_are_averaged_after_as_many_as_the_limit_says():
    """Ten transitions in three chunks are nine; 16 states with 4 actions are 256 bytes a table."""
    offline = {"collect": 10, "chunks": 3}
    acting = {"name": "q_learning", "env": "E-v0", "spaces": {"states": 16, "actions": 4}}
    spec = {"algorithm": {**acting, "offline": offline}, "limits": {"averaging": 4}}
    graph = algorithm("q_learning").graph(pearl.load({**spec, "platform": "cpu_gpu"}))
    assert {(e.src, e.dst): (e.production, e.consumption, e.tokens_seq) for e in graph.edges} == {
        ("learn", "average"): (1, 4, 0), ("average", "learn"): (4, 1, 4),
        ("learn", "learn"): (1, 1, 1),
    }  # fmt: skip
    assert (graph.env_steps, graph.updates, graph.batch) == (36, 4, 9)
    assert graph.states == {"log": 189.0, "tables": 5 * 256.0}
    sizes = {"states": 16, "actions": 4, "obs": 1, "act": 0, "batch": 9, "chunks": 3}
    assert [dict(t.kernel.dims) for t in graph.tasks] == [{**sizes, "bits": 0, "order": 0}] * 2
    acting["offline"] = {**offline, "format": "int32", "scale": 16, "order": "ran"}
    graph = algorithm("q_learning").graph(pearl.load({"algorithm": acting, "platform": "cpu_gpu"}))
    assert [dict(t.kernel.dims) for t in graph.tasks] == [{**sizes, "bits": 4, "order": 2}] * 2
