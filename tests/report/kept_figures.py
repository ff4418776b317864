"""Graphs of every algorithm, and what is counted and estimated of every kernel in them, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from pearl import load
from pearl.algorithms import algorithm
from pearl.graph.task_graph import TaskGraph
from pearl.spec.reading import read_shipped
from pearl_devices import Kernel, backend
from pearl_devices.buffers import specs
from pearl_devices.kernels import kind_of, parts
from pearl_estimators import estimate
from pearl_estimators.host import features
from pearl_estimators.host.features import terms as terms_of

CACHES = 32e3, 512e3, 16e6
"""Bytes of the three levels that terms are counted for, whatever this machine has."""
PRIORITISED = {"capacity": 3000, "kind": "prioritised", "fanout": 8}
SMALL = {"num_envs": 4, "hidden": [24, 16], "batch_size": 32, "learning_starts": 100}
REPLAY = {**SMALL, "replay": {"capacity": 5000, "kind": "uniform"}, "replay_ratio": "1/2"}
ROLLOUT = {"num_envs": 4, "hidden": [24, 16], "rollout_steps": 16}
OPTIONS: dict[str, dict[str, Any]] = {
    "dqn": {"name": "dqn", "env": "CartPole-v1", **REPLAY},
    "dqn, much": {
        "name": "dqn", "env": "MountainCar-v0", **REPLAY, "replay": PRIORITISED, "n_step": 3,
        "double": False, "replay_ratio": "3/4", "num_envs": 8,
        "normalise": {"observations": True, "rewards": True},
    },
    "ddpg": {"name": "ddpg", "env": "Pendulum-v1", **REPLAY},
    "td3": {"name": "td3", "env": "Pendulum-v1", **REPLAY, "replay": PRIORITISED},
    "sac": {"name": "sac", "env": "Pendulum-v1", **REPLAY, "n_step": 2, "replay_ratio": "2"},
    "ppo": {"name": "ppo", "env": "CartPole-v1", **ROLLOUT, "epochs": 3, "minibatches": 4},
    "ppo, continuous": {
        "name": "ppo", "env": "Pendulum-v1", **ROLLOUT, "normalise": {"observations": True},
        "epochs": 4, "minibatches": 4,
    },
    "a2c": {"name": "a2c", "env": "CartPole-v1", **ROLLOUT},
    "q_learning": {"name": "q_learning", "env": "FrozenLake-v1", "num_envs": 2},
    "sarsa": {"name": "sarsa", "env": "CliffWalking-v1"},
}  # fmt: skip


SPECS: dict[str, Any] = {
    **{name: name for name in read_shipped()},
    **{name: {"algorithm": options} for name, options in OPTIONS.items()},
    "groups": {"algorithm": OPTIONS["dqn"], "limits": {"env_groups": 2}},
}
"""Name → spec of every graph."""


def graph_of(name: str) -> TaskGraph:
    system = load(SPECS[name])
    return algorithm(system.algorithm.name).graph(system)


def plain(value: Any) -> Any:
    """With twelve digits of every number."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def lines(found: Mapping[str, Any]) -> str:
    """An object as JSON, a line an entry."""
    whole = [f" {json.dumps(k)}: {json.dumps(plain(v))}" for k, v in found.items()]
    return "{\n" + ",\n".join(whole) + "\n}\n"


def kernel_key(k: Kernel) -> str:
    sizes = ", ".join(f"{n}={v}" for n, v in k.dims.items())
    return f"{k.kind} {k.program or ''} ({sizes})"


def of_graph(name: str, graph: TaskGraph) -> dict[str, Any]:
    """Tasks, edges, fusions and states."""
    found: dict[str, Any] = {}
    for t in graph.tasks:
        about = [t.reads, t.writes, t.copies, t.group, t.environments, kernel_key(t.kernel)]
        found[f"{name}: {t.name}"] = [graph.repetition[t.name], *about]
    for n, e in enumerate(graph.edges):
        rates = [e.production, e.consumption, e.tokens, e.tokens_seq, e.slack]
        found[f"{name}: {e.src} → {e.dst} ({n})"] = [*rates, e.bytes, e.limit]
    for f in graph.fusions:
        found[f"{name}: {f.name}"] = [f.tasks, kernel_key(f.kernel)]
    sizes = [graph.env_steps, graph.updates, graph.batch]
    found[f"{name}: states"] = [dict(graph.states), *sizes]
    return found


def kernels(graph: TaskGraph) -> dict[str, Kernel]:
    return {kernel_key(t.kernel): t.kernel for t in (*graph.tasks, *graph.fusions)}


def counts(name: str, graph: TaskGraph) -> dict[str, Any]:
    """Work, products, parts, buffers and terms of every kernel."""
    found: dict[str, Any] = {}
    with patch.object(features, "cache_bytes", lambda: CACHES):
        for key, k in kernels(graph).items():
            work = [k.flops, k.bytes_in, k.bytes_out, k.resident_bytes, kind_of(k).rounds(k)]
            of = [[kernel_key(part), count] for part, count in parts(k)]
            found[key] = [work, kind_of(k).products(k), of]
            found[f"{key} buffers"] = dict(specs(k))
            for variant in kind_of(k).variants:
                found[f"{key} {variant}"] = dict(terms_of(k, variant))
    return found


def estimates(name: str, graph: TaskGraph) -> dict[str, Any]:
    """Times, energies and bands on devices that are not there, in every variant offered."""
    found: dict[str, Any] = {}
    for device in load("dqn_cartpole", set={"platform": "cpu_gpu_fpga"}).platform.devices:
        for key, k in kernels(graph).items():
            for variant, width in backend(device.kind).offers(k, device):
                e = estimate(k, device, variant=variant, width=width)
                seconds = [e.latency_s, e.occupancy_s, e.low_s, e.high_s]
                about = [*seconds, e.energy_j, e.rung, e.bound_by]
                found[f"{key} on {device.name} {variant} {width}"] = about
    return found


FIGURES: dict[str, Callable[[str, TaskGraph], dict[str, Any]]] = {
    "graphs.json": of_graph,
    "counts.json": counts,
    "estimates.json": estimates,
}


def figures(file: str) -> str:
    """The figures of all graphs."""
    found: dict[str, Any] = {}
    for name in SPECS:
        found |= FIGURES[file](name, graph_of(name))
    return lines(found)
