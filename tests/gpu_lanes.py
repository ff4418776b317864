"""Systems whose tasks lie on a CPU and on the stand-in for a GPU, and plans of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pearl.algorithms import algorithm
from pearl.planning.plans import Plan
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl_devices.gpu import program
from tests.lanes import planned, replay_spec

NUMBERS = {
    "source": "invented",
    "peak": "1 TFLOP/s",
    "memory_bandwidth": "100 GB/s",
    "overhead": "1 us",
    "idle_power": "1 W",
    "active_power": "10 W",
}
PLATFORM = {
    "devices": {
        "cpu": {"kind": "cpu", "width": 4, "max_lanes": 4, **NUMBERS},
        "gpu": {"kind": "pearl_devices.gpu.stand_in", "width": 8, **NUMBERS},
    },
    "links": [
        {"between": ["cpu", "gpu"], "source": "s", "latency": "1 us", "bandwidth": "16 GB/s"}
    ],
}
ROLLOUTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "name": "ppo",
        "env": "CartPole-v1",
        "num_envs": 8,
        "hidden": [16, 16],
        "rollout_steps": 8,
        "minibatches": 2,
        "epochs": 2,
    }
}
LEARNING = {"learn": "eager", "sync": "eager"}


def gpu_plan(
    name: str,
    on_gpu: Mapping[str, str] | None = None,
    on_cpu: Mapping[str, str] | None = None,
    limits: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[System, Plan]:
    """A small system and a plan that has tasks on the stand-in and all others on the CPU.

    on_gpu: tasks and their variants; the ones that learn, `eager`, by default.
    on_cpu: variants of other tasks where these are not `native`.
    """
    on_gpu = LEARNING if on_gpu is None else on_gpu
    spec = replay_spec("dqn" if name in ROLLOUTS else name, limits, **options)
    if name in ROLLOUTS:
        spec["algorithm"] = ROLLOUTS[name]
    spec["platform"] = PLATFORM
    named = {**on_gpu, **(on_cpu or {})}
    tasks = (t.name for t in algorithm(name).graph(load(spec)).tasks)
    spec["limits"]["pin"] = {t: "gpu" if t in on_gpu else "cpu" for t in tasks}
    spec["limits"]["variants"] = {task: [variant] for task, variant in named.items()}
    return planned(spec, variants=("native", *set(named.values())))


def a_fault_in_the_steps(monkeypatch: Any) -> None:
    """In every CUDA source that is read from now on."""
    pieces = program._pieces

    def faulty(file: str, seen: set[str]) -> Iterator[str]:
        for piece in pieces(file, seen):
            yield piece.replace("? FORCE_N : -FORCE_N", "? -FORCE_N : FORCE_N")

    monkeypatch.setattr(program, "_pieces", faulty)
