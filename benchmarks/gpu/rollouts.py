"""Rollouts on CPU lanes: acting and environments in one call, against split over two lanes.

The colocated lane runs whole vector steps in one compiled call. The split has the environments on
a lane and process of their own, so that every vector step is two messages between two cores, as
GMI-DRL's task-dedicated layout has them between slices of GPUs. Gradient steps are so rare that
they take no time. Both make the same transitions, bit for bit.

Needs no GPU: `python -m benchmarks.gpu.rollouts` prints both rates and the bar.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

import pearl
from benchmarks.bars import Bar, finish
from pearl.algorithms import algorithm
from pearl.planning.costs import build_cost_table
from pearl.planning.plans import Plan
from pearl.training.trainer import Trainer

ENVIRONMENTS, RATIO = 8, 960
STEPS, FEW_STEPS = 400_000, 2 * RATIO
ROUNDS = 5
ASKED = 1.5


def spec(steps: int) -> dict[str, Any]:
    return {
        "name": "rollouts",
        "algorithm": {
            "name": "dqn",
            "env": "CartPole-v1",
            "num_envs": ENVIRONMENTS,
            "replay_ratio": f"1/{RATIO}",
            "batch_size": 8,
            "learning_starts": 64,
            "replay": {"capacity": 8192, "kind": "uniform"},
        },
        "platform": "host",
        "limits": {"max_lanes": 2},
        "train": {"steps": steps, "evaluate_every": 0, "final_episodes": 0, "lanes": "processes"},
    }


def layouts(steps: int) -> tuple[Trainer, Trainer]:
    """Colocated and split."""
    system = pearl.load(spec(steps))
    sheet = replace(
        system.platform,
        devices=tuple(
            replace(d, real=False, width=2, max_lanes=2) for d in system.platform.devices
        ),
    )
    graph = algorithm(system.algorithm.name).graph(system)
    one = replace(system.limits, max_lanes=1)
    every = next(f for f in graph.fusions if len(f.tasks) == len(graph.tasks))
    found = []
    for fusions in ((every,), ()):
        cut = replace(graph, fusions=fusions)
        costs = replace(build_cost_table(cut, sheet, one), platform=sheet)
        if fusions:
            costs = replace(costs, modes=tuple(m for m in costs.modes if m.fused))
        found.append(pearl.solve(cut, costs, limits=one, time_limit_s=5.0))
    together, alone = found
    split = spread(alone, {t.task: int(t.task == "env_step") for t in alone.tasks})
    return Trainer(system, together, seed=1), Trainer(system, split, seed=1)


def spread(plan: Plan, where: Mapping[str, int]) -> Plan:
    """A plan of one lane with its tasks on lanes by number, each in the order it had."""
    (lane,) = [k for k in plan.lanes if k.width > 0]
    lanes = tuple(
        replace(lane, lane=f"cpu.{i}", order=tuple(e for e in lane.order if where[e.task] == i))
        for i in sorted(set(where.values()))
    )
    tasks = tuple(replace(t, lane=f"cpu.{where[t.task]}") for t in plan.tasks)
    return replace(plan, lanes=lanes, tasks=tasks)


def compared(steps: int = STEPS, rounds: int = ROUNDS) -> tuple[float, float, bool]:
    """Env steps a second colocated and split, medians of rounds in turns; and whether both filled
    the replay alike."""
    rates: tuple[list[float], list[float]] = ([], [])
    alike = True
    for _ in range(rounds):
        both = layouts(steps)
        for trainer, rate in zip(both, rates, strict=True):
            run = trainer.train()
            if run.status != "done":
                raise RuntimeError(f"rollouts: {run.message}")
            rate.append(run.env_steps_per_s or float("nan"))
        stored = [t.session.arrays["replay.obs"] for t in both]
        alike = alike and bool(np.array_equal(*stored))
    return median(rates[0]), median(rates[1]), alike


def main() -> int:
    colocated, split, alike = compared()
    rows = [["colocated", f"{colocated:,.0f}"], ["split over two lanes", f"{split:,.0f}"]]
    gain = colocated / split
    bars = [
        Bar("colocated over split", f"{gain:.2f}", f"at least {ASKED}", gain >= ASKED),
        Bar("the same transitions", str(alike), "True", alike),
    ]
    return finish("rollouts", ["layout", "env steps/s"], rows, bars, [], None, {})


if __name__ == "__main__":
    sys.exit(main())
