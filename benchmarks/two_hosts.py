"""Two raylets of this machine that stand for two hosts: what is trained over them, and by which
ways to share out its tasks. The extra [ray] is needed. What a real network adds is not shown here.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from benchmarks.bars import ABSENT

NODES = ("a", "b")
HOME, AWAY = "a/cpu", "b/cpu"
SEED = 3

STORED = ("replay_insert", "replay_sample", "replay_update", "rollout_insert", "gae")
"""Tasks of a replay or a rollout, of which an algorithm has some."""

SOURCES: dict[str, dict[str, Any]] = {
    "dqn": {
        "name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64, 64], "batch_size": 64,
        "replay_ratio": "1/4", "learning_starts": 256,
        "replay": {"capacity": 10_000, "kind": "uniform"},
    },
    "ppo": {
        "name": "ppo", "env": "CartPole-v1", "num_envs": 8, "rollout_steps": 32, "minibatches": 4,
        "epochs": 2, "hidden": [64, 64],
    },
}  # fmt: skip
STEPS = {"dqn": 8_000, "ppo": 16_384}

LEARNERS = "data_parallel_learners"
ONE_COPY = {"replicas": {"env_step": 1, "inference": 1}}
"""Copies of actors draw from streams of their own, so a plan with several has other bits than the
sequential program, wherever it runs."""

POLICIES: dict[str, dict[str, Any]] = {
    "one_host": {"distribution": "one_host"},
    "synchronous_actors": {"distribution": "synchronous_actors", **ONE_COPY},
    "central_inference": {"distribution": "central_inference", **ONE_COPY},
    "networks apart": {"pin": {**dict.fromkeys(("env_step", *STORED), AWAY), "*": HOME}},
    "asynchronous_actors": {"distribution": "asynchronous_actors", "policy_lag": 4},
    LEARNERS: {"distribution": LEARNERS, "learners": 2},
}
"""Name → limits. A pin of `*` is one of every task that no other names. Without a GPU networks have
a host of their own in place of `accelerated_networks`."""


ALL: dict[str, Any] = {}
"""Keys of `train` in every run."""


def with_raylets(call: Callable[[Any], int], cores: tuple[int, int] = (2, 2)) -> int:
    """What `call` returns of a cluster of two nodes; without Ray the status ABSENT, and a line."""
    if find_spec("ray") is None:
        print("absent: Ray; pip install 'pearl-toolkit[ray]'")
        return ABSENT
    from tests.ray_cluster import ray_cluster

    with ray_cluster(cores=cores) as cluster:
        return call(cluster)


def spec_of(name: str, policy: str, platform: Any = "ray", **train: Any) -> dict[str, Any]:
    """The spec of an algorithm under a policy. The section of the algorithm is the same in all."""
    from pearl.algorithms import algorithm
    from pearl.spec.reading import load

    quiet = {"steps": STEPS[name], "evaluate_every": 0, "final_episodes": 0, "seed": SEED}
    spec = {
        "algorithm": copy.deepcopy(SOURCES[name]),
        "platform": platform,
        "train": quiet | ALL | train,
    }
    limits = copy.deepcopy(POLICIES[policy])
    if "pin" in limits:
        system = load({**spec, "platform": "host"})
        tasks = [t.name for t in algorithm(name).graph(system).tasks]
        rest = limits["pin"].pop("*", None)
        given = limits["pin"]
        limits["pin"] = {t: given.get(t, rest) for t in tasks if given.get(t, rest)}
    return spec | {"limits": limits}


def planned(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """System and plan of a spec."""
    import pearl

    system = pearl.load(spec)
    return system, pearl.plan(system)


def trained(system: Any, plan: Any, lanes: str | None, **options: Any) -> Any:
    """A trainer after its run, with its lanes as said; by default as the plan says."""
    from pearl.training.trainer import Trainer

    train = copy.copy(system.train)
    object.__setattr__(train, "lanes", lanes)
    trainer = Trainer(replace(system, train=train), plan, seed=SEED)
    trainer.run = trainer.train(**options)  # type: ignore[attr-defined]
    return trainer


def pinned(cluster: Any) -> None:
    """Each node, and what runs there, has a core of its own where there are two."""
    from tests.ray_cluster import members

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    os.sched_setaffinity(0, {cores[0]})
    for name, core in zip(NODES, cores, strict=False):
        for pid in members(cluster.nodes[name].pid):
            os.sched_setaffinity(pid, {core})
