"""Whole runs of networks and algorithms of users, predicted from timings and from the data sheet.

Each spec is planned and trained on one lane. Measured are the seconds of an iteration in the steady
stretch, without the time in which another program had the core (`drift.waited`). For comparison,
the data sheet prices the user code of the same plan; all other calls keep their estimates.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pearl
from benchmarks.bars import Part, at_most
from pearl_devices.kernels import kind_of
from pearl_estimators.cpu_datasheet import cpu_datasheet
from pearl_estimators.host.user_code_timing import estimate_network

MEDIAN, WORST, RUNS = 0.10, 0.30, 3
NETS = "benchmarks.estimators.own_nets"
DQN = {"name": "dqn", "replay": {"kind": "uniform", "capacity": 2_000}, "learning_starts": 200}

SPECS: dict[str, tuple[int, dict[str, Any]]] = {
    "DQN, Nature CNN 4×84×84": (420, {
        **DQN, "env": f"{NETS}:Frames", "env_args": {"side": 84}, "network": f"{NETS}:nature",
        "batch_size": 32,
    }),
    "DQN, small CNN": (2_000, {
        **DQN, "env": "examples.catch_image:Catch", "network": "examples.catch_image:cnn",
        "batch_size": 64,
    }),
    "PPO, small CNN": (8_192, {
        "name": "ppo", "env": "examples.catch_image:Catch", "network": "examples.catch_image:cnn",
        "num_envs": 8, "rollout_steps": 64, "epochs": 4, "minibatches": 4,
    }),
    "DQN, dense layers with LayerNorm": (3_000, {
        **DQN, "env": "CartPole-v1", "network": f"{NETS}:normed", "batch_size": 128,
    }),
    "Munchausen DQN, own algorithm": (4_000, {
        **DQN, "name": "examples.own_algorithm", "env": "CartPole-v1", "num_envs": 4,
    }),
}  # fmt: skip
"""Name → env steps and algorithm."""


def train_once(steps: int, algorithm: dict[str, Any]) -> tuple[float, float, float, float]:
    """Train a spec. Return the predicted seconds of an iteration, those with the data sheet for
    user code, the measured ones net of waits, and the waiting share (0 if unknown)."""
    train = {"steps": steps, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0}
    spec = {"algorithm": algorithm, "limits": {"max_lanes": 1}, "train": train}
    found = pearl.compile(spec).train()
    problem, drift = found.plan.problem, found.drift
    assert problem is not None
    assert problem.system is not None
    assert drift is not None
    assert drift.measured_s is not None
    graph, platform = problem.graph, problem.system.platform
    more_s = 0.0
    for task in found.plan.tasks:
        kernel, device = graph.task(task.task).kernel, platform.device(task.device)
        if kernel.modules or kind_of(kernel).assumed:
            timed = estimate_network(kernel, device, task.variant, 1).latency_s
            sheet = cpu_datasheet(kernel, device, task.variant, 1).latency_s
            more_s += graph.repetition[task.task] * (sheet - timed)
    waited = drift.waited or 0.0
    net_s = drift.measured_s * (1 - waited)
    return drift.predicted_s, drift.predicted_s + more_s, net_s, waited


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others; quick trains each spec once."""
    rows: list[list[str]] = []
    kept: dict[str, dict[str, float]] = {}
    off: list[float] = []
    for name, (steps, algorithm) in SPECS.items():
        runs = [train_once(steps, algorithm) for _ in range(1 if quick else RUNS)]
        net_s = median(measured for _, _, measured, _ in runs)
        timed_s, sheet_s, _, waited = runs[0]
        ratios = {"timed": timed_s / net_s, "data sheet": sheet_s / net_s}
        shown = [f"{1e3 * net_s:.3g} ms", *(f"{ratio:.2f}" for ratio in ratios.values())]
        rows.append([name, *shown, f"{waited:.0%}"])
        kept[name] = {**ratios, "net_s": net_s, "waited": waited}
        off.append(abs(ratios["timed"] - 1))
    bars = [
        at_most("median error of timed user code", median(off), MEDIAN),
        at_most("worst error of timed user code", max(off), WORST),
    ]
    columns = ["spec", "iteration, net", "timed / net", "data sheet / net", "no core"]
    return Part("own networks and algorithms", columns, rows, bars, values=kept)
