"""Plans with several lanes, made by the solver from invented times, and runs of them."""

from __future__ import annotations

import copy
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from pearl import solve
from pearl.algorithms import algorithm
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plans import Plan
from pearl.planning.runs import Run
from pearl.runtime.protocol import single_lane
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.training import loop
from pearl.training.session import Session
from pearl.training.steering import Progress
from pearl.training.trainer import Trainer

SECONDS = {
    "act": 100e-6,
    "step": 100e-6,
    "store": 30e-6,
    "advantages": 100e-6,
    "sample": 50e-6,
    "learn": 200e-6,
    "priorities": 20e-6,
    "sync": 5e-6,
}
"""Task → seconds of a firing, such that several lanes pay."""

CONTINUOUS = {"ddpg", "td3", "sac"}
EXPLORE = {
    "dqn": {"initial": 0.2, "final": 0.1, "steps": 1000},
    "ddpg": {"noise": 0.1},
    "td3": {"noise": 0.1},
}


def replay_spec(
    name: str, limits: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """A small system of an algorithm with a replay; a learning rate so large that every parameter
    version acts differently."""
    acting: dict[str, Any] = {
        "name": name,
        "env": "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1",
        "num_envs": 8,
        "hidden": [16, 16],
        "batch_size": 16,
        "replay_ratio": "1/4",
        "learning_starts": 64,
        "replay": {"capacity": 1000, "kind": "uniform"},
    }
    if name in EXPLORE:
        acting["exploration"] = EXPLORE[name]
    if name == "dqn":
        acting["learning_rate"] = 0.02
    acting |= options
    quiet = {"steps": 2000, "evaluate_every": 0, "final_episodes": 0}
    return {
        "algorithm": acting,
        "platform": "host",
        "limits": {"max_lanes": 3, **(limits or {})},
        "train": {**quiet, "lanes": "one"},
    }


def planned(
    spec: Mapping[str, Any],
    *,
    seconds: Mapping[str, float] = SECONDS,
    occupied: Mapping[str, float] | None = None,
    cores: int = 4,
    variants: tuple[str, ...] = ("native",),
    method: str | None = None,
) -> tuple[System, Plan]:
    """The plan of a spec on a host of so many cores where every task takes what `seconds` says, and
    of its lane what `occupied` says (by default as long). No fused calls."""
    system = load(spec)
    host = replace(system.platform.devices[0], width=cores, max_lanes=cores)
    devices = (host, *system.platform.devices[1:])
    system = replace(system, platform=replace(system.platform, devices=devices))
    graph, costs = _costs(system, seconds, occupied or {}, variants)
    found = solve(graph, costs, limits=system.limits, method=method, time_limit_s=600.0)
    return system, found


def untimed(system: System) -> System:
    """The system with its host as a data sheet: nothing is timed for its plan."""
    absent = tuple(replace(d, real=False) for d in system.platform.devices)
    return replace(system, platform=replace(system.platform, devices=absent))


def _costs(
    system: System,
    seconds: Mapping[str, float],
    occupied: Mapping[str, float],
    variants: tuple[str, ...],
) -> tuple[TaskGraph, CostTable]:
    graph = algorithm(system.algorithm.name).graph(system)
    sheet = build_cost_table(graph, untimed(system).platform, system.limits)
    costs = replace(sheet, platform=system.platform)
    modes = []
    for mode in costs.modes:
        if len(mode.tasks) > 1 or mode.variant not in variants:
            continue
        task = graph.task(mode.tasks[0])
        part = mode.share / task.environments if mode.share else 1.0
        latency = seconds[task.name] * part
        estimate = replace(
            mode.estimate,
            latency_s=latency,
            occupancy_s=occupied.get(task.name, seconds[task.name]) * part,
            low_s=latency,
            high_s=latency,
        )
        modes.append(replace(mode, estimate=estimate))
    return graph, replace(costs, modes=tuple(modes))


def trained(
    system: System, plan: Plan, lanes: str, *, steps: int = 2000, seed: int = 3, **options: Any
) -> Trainer:
    """A trainer after `steps` env steps with its lanes hosted as said."""
    system = told(system, lanes=lanes)
    trainer = Trainer(system, plan, seed=seed)
    trainer.run = trainer.train(steps=steps, **options)  # type: ignore[attr-defined]
    return trainer


def recalled(trainer: Trainer, *fused: single_lane.Job) -> None:
    """The trainer with every task a native call of its own but those of `fused`."""
    jobs = {
        t.name: single_lane.Job((t.name,), t.kernel, "cpu", "native") for t in trainer.graph.tasks
    }
    for call in fused:
        jobs |= dict.fromkeys(call.tasks, call)
    made = replace(trainer.session.compiled, jobs=jobs)
    trainer.session = Session(made, trainer.seed)


def retold(trainer: Trainer, **changes: Any) -> Trainer:
    """The trainer with other values in the section `train` of its system."""
    made = trainer.session.compiled
    trainer.session = Session(replace(made, system=told(made.system, **changes)), trainer.seed)
    return trainer


def told(system: System, **changes: Any) -> System:
    """A system with other values in its section `train`, taken as they are: `replace` would have
    quantities read again, with their unit."""
    train = copy.copy(system.train)
    for name, value in changes.items():
        object.__setattr__(train, name, value)
    return replace(system, train=train)


PASSING = ("batch.", "step.", "loop.", "act.", "best.")
"""Arrays that only carry what one firing tells another: after the end they are of no use."""


def differing(one: Trainer, other: Trainer) -> list[str]:
    """The arrays of a run that are not equal bit for bit, those left out that PASSING names."""
    a, b = one.session.arrays, other.session.arrays
    names = [n for n in a if not n.startswith(PASSING) and "@" not in n]
    return [n for n in names if n not in b or not np.array_equal(a[n], b[n])]


def spread(plan: Plan, where: Mapping[str, int]) -> Plan:
    """A plan of one lane with its tasks shared out to lanes by number, each in the order it had."""
    (lane,) = [k for k in plan.lanes if k.width > 0]
    numbers = sorted(set(where.values()))
    lanes = [
        replace(lane, lane=f"cpu.{i}", order=tuple(e for e in lane.order if where[e.task] == i))
        for i in numbers
    ]
    tasks = tuple(replace(t, lane=f"cpu.{where[t.task]}") for t in plan.tasks)
    return replace(plan, lanes=tuple(lanes), tasks=tasks)


def cut(trainer: Trainer, at: int, **options: Any) -> Run:
    """The run of a trainer that is interrupted at env step `at` or soon after."""

    def press(now: Progress) -> None:
        if now.env_steps >= at:
            signal.raise_signal(signal.SIGINT)

    with patch.object(loop, "PROGRESS_S", 0.0):
        run = trainer.train(progress=press, **options)
    assert (run.status, run.env_steps >= at) == ("interrupted", True)
    return run
