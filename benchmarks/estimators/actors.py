"""Actors on this host's cores: one, two, four, predicted from the times of one and measured.

DQN on environments of the user's own that take a given CPU time a step. An actor is a copy of
step with its share of the environments; there are as many lanes as actors, up to the cores, so
four actors on two cores are to gain little over two. Wall time, in turns, each round with the
control of `benchmarks.two_cores`: rounds in which the machine was shared do not count.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pearl
from benchmarks.bars import Part, at_least, at_most
from benchmarks.two_cores import CONTROL, LEAST_ROUNDS, Control, rounds_of
from pearl_devices.cpu_count import usable_cpu_count

ACTORS = (1, 2, 4)
STEP_US, ENVS, RUN_S = 150, 8, 0.8
LEAST, MOST, ERROR = 1.6, 1.15, 0.20
LIMIT_S = 150.0


def trainer(actors: int) -> pearl.Trainer:
    """Eight environments shared out to so many actors."""
    lanes = min(actors, usable_cpu_count())
    limits: dict[str, Any] = {"max_lanes": lanes, "policy_lag": 2}
    if actors > 1:
        limits["replicas"] = {"step": actors}
    spec = {
        "algorithm": {
            "name": "dqn", "env": "benchmarks.slow_env:cartpole", "env_args": {"us": STEP_US},
            "num_envs": ENVS, "hidden": [64, 64], "batch_size": 64, "replay_ratio": "1/8",
            "learning_starts": 200, "replay": {"kind": "uniform", "capacity": 20_000},
        },
        "limits": limits,
        "train": {
            "steps": math.ceil(lanes * RUN_S / (STEP_US * 1e-6) / ENVS) * ENVS, "evaluate_every": 0,
            "final_episodes": 0, "checkpoint_every": 0,
            "lanes": "processes" if lanes > 1 else "one",
        },
    }  # fmt: skip
    return pearl.compile(spec)


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    trainers = {n: trainer(n) for n in ACTORS}
    predicted = {n: t.plan.rates["env_steps_per_s"] for n, t in trainers.items()}
    wanted, limit_s = (LEAST_ROUNDS, LIMIT_S / 4) if quick else (9, LIMIT_S)
    for t in trainers.values():
        t.train()

    def rate() -> dict[int, float]:
        return {n: t.train().env_steps_per_s or math.nan for n, t in trainers.items()}

    control = Control()
    rounds = rounds_of(rate, control, wanted, limit_s)
    control.close()
    counted = [r for r in rounds if r[0] >= CONTROL]
    used = counted or rounds
    rates = {n: median(f[n] for _, f in used) for n in ACTORS}
    gains = {(a, b): median(f[b] / f[a] for _, f in used) for a, b in ((1, 2), (2, 4))}
    worst = max(abs(predicted[n] / rates[n] - 1) for n in ACTORS)
    rows = [
        [
            str(n),
            str(len({t.lane for t in trainers[n].plan.tasks})),
            f"{predicted[n]:,.0f}",
            f"{rates[n]:,.0f}",
            f"{100 * (predicted[n] / rates[n] - 1):+.1f} %",
        ]
        for n in ACTORS
    ]
    bars = [
        at_least("one actor to two", gains[1, 2], LEAST, "{:.2f} x"),
        at_most("two actors to four", gains[2, 4], MOST, "{:.2f} x"),
        at_most("error of the prediction, worst", worst, ERROR, "{:.1%}"),
    ]
    if len(counted) < LEAST_ROUNDS:
        bars = [replace(bar, measured=f"{bar.measured} (void)", met=False) for bar in bars]
    values = {
        "predicted": predicted, "measured": rates, "rounds": len(rounds), "counted": len(counted),
        "control": median(c for c, _ in used),
    }  # fmt: skip
    title = f"Actors of environments of {STEP_US} us, {len(counted)} of {len(rounds)} rounds"
    columns = ["actors", "lanes", "predicted /s", "measured /s", "error"]
    return Part(title, columns, rows, bars, [], values)
