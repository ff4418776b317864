"""Distribution policies: the limits that each name stands for, and what contradicts it."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from pearl.planner.planner import plan
from pearl.spec.distribution import DISTRIBUTIONS
from pearl.spec.models import LimitsSection
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.spec.user_code import build_graph

CPU = {"kind": "cpu", "source": "a test", "width": 2, "max_lanes": 2, "peak": "100 GFLOP/s",
       "memory_bandwidth": "10 GB/s", "overhead": "1 us", "idle_power": "1 W",
       "active_power": "10 W"}  # fmt: skip
LINK = {"source": "a test", "latency": "1 ms", "per_message": "500 us", "bandwidth": "100 MB/s"}
HOSTS = {"hosts": {"a": {"devices": {"cpu": CPU, "gpu": "t4"},
                         "links": [{"between": ["cpu", "gpu"], **LINK}]},
                   "b": {"devices": {"cpu": CPU}}},
         "links": [{"between": ["a", "b"], **LINK}]}  # fmt: skip
DQN = {"name": "dqn", "env": "CartPole-v1", "num_envs": 4, "n_step": 1}
PPO = {"name": "ppo", "env": "CartPole-v1", "num_envs": 4, "rollout_steps": 2, "epochs": 1,
       "minibatches": 1}  # fmt: skip

METHOD = "heft"


def system(
    distribution: str, algorithm: dict[str, Any] = DQN, platform: Any = HOSTS, **limits: Any
) -> System:
    return load({"algorithm": algorithm, "platform": platform,
                 "limits": {"distribution": distribution, **limits}})  # fmt: skip


def places(found: System) -> dict[str, set[str]]:
    """Task → the devices that every plan may have it on."""
    return {task: set(names) for task, names in found.limits.devices.items()}


AT_HOME = {"a/cpu", "a/gpu"}
EXPECTED = {
    "one_host": (AT_HOME, AT_HOME, AT_HOME),
    "synchronous_actors": ({"b/cpu"}, {"b/cpu"}, AT_HOME),
    "asynchronous_actors": ({"b/cpu"}, {"b/cpu"}, AT_HOME),
    "central_inference": ({"b/cpu"}, AT_HOME, AT_HOME),
    "accelerated_networks": ({"a/cpu", "b/cpu"}, {"a/gpu"}, {"a/gpu"}),
    "data_parallel_learners": (AT_HOME, AT_HOME, {"a/cpu"}),
}
"""Policy → devices allowed for step, act and learn."""
MORE: dict[str, dict[str, Any]] = {"data_parallel_learners": {"learners": 2}}
"""Policy → limits that it needs beside its name."""


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_a_policy_places_the_same_algorithm_by_limits_alone(name: str) -> None:
    for algorithm in (DQN, PPO):
        if name == "asynchronous_actors" and algorithm is PPO:
            continue  # its rollouts belong to one policy
        more = MORE.get(name, {})
        found = places(system(name, algorithm, **more))
        for task, allowed in zip(("step", "act", "learn"), EXPECTED[name], strict=True):
            assert found[task] == allowed, (algorithm["name"], task)
        assert found.keys() == {t.name for t in build_graph(system(name, algorithm, **more)).tasks}


def test_names_in_specs_are_those_of_the_table() -> None:
    hint = get_type_hints(LimitsSection)["distribution"]
    (names,) = (get_args(each) for each in get_args(hint) if get_args(each))
    assert set(names) == set(DISTRIBUTIONS)
    assert set(EXPECTED) == set(DISTRIBUTIONS)


def test_copies_are_as_many_as_lanes_elsewhere_or_as_the_limit_says() -> None:
    assert dict(system("synchronous_actors").limits.replicas) == {"step": 2, "act": 2}
    assert dict(system("central_inference").limits.replicas) == {"step": 2}
    assert dict(system("one_host").limits.replicas) == {}
    found = system("asynchronous_actors")
    assert found.limits.any_order
    assert dict(found.limits.replicas) == {"step": 2, "act": 2}
    fewer = system("synchronous_actors", replicas={"step": 1, "act": 1})
    assert dict(fewer.limits.replicas) == {"step": 1, "act": 1}


def test_a_policy_is_kept_by_its_name() -> None:
    found = system("central_inference", devices={"act": ["a/gpu"]})
    assert found.raw["limits"]["distribution"] == "central_inference"
    assert found.limits.devices["act"] == ("a/gpu",)
    assert load(found.raw).limits == found.limits


LEARNERS = "data_parallel_learners"


FIRST = ("average", "learn", "sync")
"""Tasks of the first learner besides its gradient."""


def test_learners_are_on_the_hosts_in_turn_and_all_else_is_at_home() -> None:
    found = places(system(LEARNERS, learners=4))
    learners = {n: at for n, at in found.items() if n.startswith(("gradient_", "learn_"))}
    assert len(learners) == 7
    for task, at in learners.items():
        assert at == ({"b/cpu"} if task[-1] in "13" else {"a/cpu"}), task
    assert all(at == AT_HOME for n, at in found.items() if n not in (*learners, *FIRST))
    assert all(found[n] == {"a/cpu"} for n in FIRST)


def test_a_shard_is_averaged_beside_its_learner() -> None:
    found = places(system(LEARNERS, learners=2, reduction="shards"))
    assert found["average"] == {"a/cpu"}
    assert found["average_1"] == {"b/cpu"}


def test_gradients_are_cut_into_shards_where_that_is_quicker() -> None:
    for hidden, tasks in (([600, 600], ("average", "average_1")), ([64], ("average",))):
        spec = {"algorithm": {**DQN, "hidden": hidden}, "platform": {"devices": {"cpu": CPU}}}
        graph = build_graph(load({**spec, "limits": {"learners": 2}}))
        assert tuple(t.name for t in graph.tasks if t.name.startswith("average")) == tasks


def test_the_price_of_learners_is_the_share_and_the_reduction() -> None:
    """With a wide network and a batch of thousands two hosts with a fast link are faster than one;
    over a slow link the gradients take longer than they save."""
    algorithm = {**DQN, "batch_size": 4096, "learning_starts": 5000, "hidden": [128, 128]}
    torch = {"variants": {"learn": ["torch"]}}
    one = plan(system("one_host", algorithm, **torch), method=METHOD).period_s
    spent = {}
    for speed in ("100 GB/s", "1 MB/s"):
        link = {**LINK, "latency": "1 us", "per_message": "1 us", "bandwidth": speed}
        hosts = {**HOSTS, "links": [{"between": ["a", "b"], **link}]}
        found = system(LEARNERS, algorithm, hosts, learners=2, **torch)
        spent[speed] = plan(found, method=METHOD)
    fast, slow = spent.values()
    assert fast.period_s < 0.7 * one
    assert slow.period_s > one
    alone = next(t.seconds for t in fast.tasks if t.task == "gradient_0")
    assert alone < 0.7 * one / 4
    assert "average" in {t.task for t in fast.tasks}
