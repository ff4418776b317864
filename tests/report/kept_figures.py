"""Graphs of algorithms, and what is counted and estimated of the kernels in them, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from unittest.mock import patch

from pearl import load
from pearl.algorithms import algorithm
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Device, Kernel, backend
from pearl_devices.buffers import specs
from pearl_devices.kernels import kind_of, parts
from pearl_estimators import estimate
from pearl_estimators.host import features
from pearl_estimators.host.features import terms as terms_of
from tests.report.kept_pages import rounded

CACHES = 32e3, 512e3, 16e6
"""Bytes of the three levels that terms are counted for, whatever this machine has."""
PRIORITISED = {"capacity": 3000, "kind": "prioritised", "fanout": 8}
SMALL = {"num_envs": 4, "hidden": [24, 16], "batch_size": 32, "learning_starts": 100}
REPLAY = {**SMALL, "replay": {"capacity": 5000, "kind": "uniform"}, "replay_ratio": "1/2"}
ROLLOUT = {"num_envs": 4, "hidden": [24, 16], "rollout_steps": 16}
SPECS: dict[str, Any] = {
    "dqn": {"algorithm": {"name": "dqn", "env": "CartPole-v1", **REPLAY}},
    "dqn, much": {
        "algorithm": {
            "name": "dqn", "env": "MountainCar-v0", **REPLAY, "replay": PRIORITISED, "n_step": 3,
            "double": False, "replay_ratio": "3/4", "num_envs": 8,
            "normalise": {"observations": True, "rewards": True},
        },
    },
    "ppo, continuous": {
        "algorithm": {
            "name": "ppo", "env": "Pendulum-v1", **ROLLOUT, "normalise": {"observations": True},
            "epochs": 4, "minibatches": 4,
        },
    },
    "groups": {
        "algorithm": {"name": "dqn", "env": "CartPole-v1", **REPLAY}, "limits": {"env_groups": 2},
    },
}  # fmt: skip
"""Name of a graph → its spec."""
GRAPHS = ("dqn, much", "ppo, continuous", "groups")
COUNTED = ("dqn", "ppo, continuous")
"""Names of graphs that are samples; contracts and counts by hand hold the others."""


@cache
def graph_of(name: str) -> TaskGraph:
    system = load(SPECS[name])
    return algorithm(system.algorithm.name).graph(system)


def kernels_of(name: str) -> dict[str, Kernel]:
    graph = graph_of(name)
    return {kernel_key(each.kernel): each.kernel for each in (*graph.tasks, *graph.fusions)}


def kernel_key(k: Kernel) -> str:
    sizes = ", ".join(f"{n}={v}" for n, v in k.dims.items())
    return f"{k.kind} {k.program or ''} ({sizes})"


def graph_rows(name: str) -> dict[str, Any]:
    graph, found = graph_of(name), dict[str, Any]()
    for t in graph.tasks:
        about = [t.reads, t.writes, t.copies, t.group, t.environments, kernel_key(t.kernel)]
        found[f"{name}: {t.name}"] = [graph.repetition[t.name], *about]
    for n, e in enumerate(graph.edges):
        rates = [e.production, e.consumption, e.tokens, e.tokens_seq, e.slack]
        found[f"{name}: {e.src} → {e.dst} ({n})"] = [*rates, e.bytes, e.limit]
    for f in graph.fusions:
        found[f"{name}: {'+'.join(f.tasks)}"] = [f.name, kernel_key(f.kernel)]
    sizes = [graph.env_steps, graph.updates, graph.batch]
    found[f"{name}: states"] = [dict(graph.states), *sizes]
    return rounded(found, 12)  # type: ignore[no-any-return]


def counts(name: str) -> dict[str, Any]:
    """Work, products, parts, buffers and terms of every kernel."""
    found: dict[str, Any] = {}
    with patch.object(features, "cache_bytes", lambda: CACHES):
        for key, k in kernels_of(name).items():
            work = [k.flops, k.bytes_in, k.bytes_out, k.resident_bytes, kind_of(k).rounds(k)]
            of = [[kernel_key(part), count] for part, count in parts(k)]
            found[key] = [work, kind_of(k).products(k), of]
            found[f"{key} buffers"] = dict(specs(k))
            for variant in kind_of(k).variants:
                found[f"{key} {variant}"] = dict(terms_of(k, variant))
    return rounded(found, 12)  # type: ignore[no-any-return]


@cache
def absent() -> tuple[Device, ...]:
    """Devices that are not there."""
    return load("dqn_cartpole", set={"platform": "cpu_gpu_fpga"}).platform.devices


def estimates(name: str) -> dict[str, Any]:
    """Times, energies and bands on absent devices, in every variant offered."""
    found: dict[str, Any] = {}
    for device in absent():
        for key, k in kernels_of(name).items():
            for variant, width in backend(device.kind).offers(k, device):
                e = estimate(k, device, variant=variant, width=width)
                seconds = [e.latency_s, e.occupancy_s, e.low_s, e.high_s]
                about = [*seconds, e.energy_j, e.rung, e.bound_by]
                found[f"{key} on {device.name} {variant} {width}"] = about
    return rounded(found, 12)  # type: ignore[no-any-return]


FIGURES: dict[str, tuple[Callable[[str], dict[str, Any]], Iterable[str]]] = {
    "graphs.json": (graph_rows, GRAPHS),
    "counts.json": (counts, COUNTED),
    "estimates.json": (estimates, COUNTED),
}
