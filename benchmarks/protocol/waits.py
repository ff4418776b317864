"""Systems whose tasks wait: real kernels on the host, with sleeps put before them or latency after
them that does not occupy the lane; and their plans, made from just these times."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pearl import solve
from pearl.algorithms import algorithm
from pearl.planner import async_plan
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.runs import Run
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.training.trainer import Trainer
from pearl_devices import Buffers, Call, Kernel, cpu

QUICK_S = 20e-6
"""What a task takes that has no sleep: about what these small kernels take with their counts."""

Draw = Callable[[random.Random], float]
"""Seconds that one firing sleeps."""


@dataclass(frozen=True)
class Case:
    """A system and how long its tasks wait. sleeps: task → seconds a firing (of all environments)
    on the lane; late: task → seconds until it is complete, off the lane. drawn: task → what it
    sleeps instead, differently each firing."""

    algorithm: Mapping[str, Any]
    limits: Mapping[str, Any]
    sleeps: Mapping[str, float]
    late: Mapping[str, float] = field(default_factory=dict)
    drawn: Mapping[str, Draw] = field(default_factory=dict)


class Later:
    """A firing whose kernel runs when it is due."""

    def __init__(self, due_s: float, call: Call) -> None:
        self._due_s, self._call = due_s, call
        self._done = False

    def done(self) -> bool:
        if not self._done and time.perf_counter() >= self._due_s:
            self._call()
            self._done = True
        return self._done


def planned(case: Case, cores: int = 8) -> tuple[System, Plan]:
    """The system on a host of so many cores, and its plan from the times of the case."""
    options = {
        "name": "dqn", "env": "CartPole-v1", "hidden": [16, 16], "batch_size": 16,
        "learning_starts": 16, "exploration": {"initial": 0.2, "final": 0.1, "steps": 1000},
        "replay": {"capacity": 5000, "kind": "uniform"},
    }  # fmt: skip
    quiet = {"steps": 1000, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0}
    spec = {
        "algorithm": options | dict(case.algorithm),
        "limits": dict(case.limits),
        "train": {**quiet, "lanes": "threads"},
    }
    system = load(spec)
    host = replace(system.platform.devices[0], width=cores, max_lanes=cores)
    devices = (host, *system.platform.devices[1:])
    system = replace(system, platform=replace(system.platform, devices=devices))
    graph = algorithm(system.algorithm.name).graph(system)
    costs = build_cost_table(graph, system.platform, system.limits)
    modes = []
    for mode in costs.modes:
        if len(mode.tasks) > 1 or mode.variant != "native":
            continue
        task = graph.task(mode.tasks[0])
        part = mode.share / task.environments if mode.share else 1.0
        lane_s = QUICK_S + case.sleeps.get(task.name, 0.0) * part
        latency_s = lane_s + case.late.get(task.name, 0.0)
        estimate = replace(
            mode.estimate, latency_s=latency_s, occupancy_s=lane_s, low_s=latency_s,
            high_s=latency_s,
        )  # fmt: skip
        modes.append(replace(mode, estimate=estimate))
    table = replace(costs, modes=tuple(modes))
    if system.limits.any_order:
        return system, async_plan.solve(Problem(graph, table, system.limits))
    return system, solve(graph, table, limits=system.limits)


def hosted(system: System, lanes: str) -> System:
    """The system with its lanes hosted as said."""
    train = copy.copy(system.train)
    object.__setattr__(train, "lanes", lanes)
    return replace(system, train=train)


@contextmanager
def waiting(case: Case) -> Iterator[None]:
    """While this lasts, the host's tasks wait as the case says."""
    bind, seeds = cpu.bind, itertools.count()

    def binding(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        call = bind(kernel, variant, buffers)
        task = kernel.kind.partition(".")[0]
        envs = kernel.dims.get("envs", 1)
        late_s, r = case.late.get(task), random.Random(next(seeds))
        if late_s is not None:
            return lambda: Later(time.perf_counter() + late_s, call)
        draw = case.drawn.get(task)
        if draw is None:
            acting = task in ("step", "act")
            part = float(envs) / _acting(case) if acting else 1.0  # type: ignore[arg-type]
            sleep_s = case.sleeps.get(task, 0.0) * part
            if not sleep_s:
                return call
            return _after(lambda: sleep_s, call)
        return _after(lambda: draw(r), call)

    cpu.bind = binding
    try:
        yield
    finally:
        cpu.bind = bind


def _after(sleep_s: Callable[[], float], call: Call) -> Call:
    def late() -> None:
        time.sleep(sleep_s())
        call()

    return late


def _acting(case: Case) -> float:
    """Environments of one whole firing."""
    return case.algorithm["num_envs"] / case.limits.get("env_groups", 1)


def trained(case: Case, system: System, plan: Plan, steps: int, lanes: str = "threads") -> Run:
    """A run of so many env steps with the waits of the case."""
    with waiting(case):
        return Trainer(hosted(system, lanes), plan, seed=1).train(steps=steps)
