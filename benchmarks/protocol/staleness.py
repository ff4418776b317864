"""Return against policy lag and priority staleness: how much of it slack may cost."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Part
from benchmarks.protocol.waits import hosted
from pearl import solve
from pearl.algorithms import algorithm
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plans import Plan
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.training.trainer import Trainer

LAGS = (0, 1, 4, 16)
KINDS = {
    "policy_lag": ("sync", "act"),
    "priority_staleness": ("learn", "priorities"),
}
"""Limit → the edge whose slack it bounds."""

CASES: dict[str, dict[str, Any]] = {
    "DQN, CartPole-v1": {
        "algorithm": {
            "name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64, 64],
            "batch_size": 64, "learning_rate": 1e-3, "replay_ratio": "1/2", "learning_starts": 1000,
            "replay": {"capacity": 50_000, "kind": "prioritised"},
        },
        "train": {"steps": 50_000},
    },
    "SAC, Pendulum-v1": {
        "algorithm": {
            "name": "sac", "env": "Pendulum-v1", "num_envs": 4, "hidden": [64, 64],
            "batch_size": 64, "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
            "replay_ratio": 1, "learning_starts": 1000,
            "replay": {"capacity": 50_000, "kind": "prioritised"},
        },
        "train": {"steps": 20_000},
    },
}  # fmt: skip


def plan_with(system: System, kind: str, slack: int) -> Plan:
    """A plan that has just this slack on the edge of `kind`, whether it pays or not."""
    graph = algorithm(system.algorithm.name).graph(system)
    costs = build_cost_table(graph, system.platform, system.limits)
    single = replace(costs, modes=tuple(m for m in costs.modes if not m.fused))
    found = solve(graph, single, limits=system.limits)
    edges = tuple(
        replace(e, slack=slack, tokens=e.tokens + slack * max(e.production, e.consumption))
        if (e.src, e.dst) == KINDS[kind]
        else e
        for e in found.edges
    )
    return replace(found, edges=edges)


def final_return(case: dict[str, Any], kind: str, slack: int, seed: int, steps: int) -> float:
    """Mean return of 20 greedy episodes of the last policy."""
    spec = {**case, "limits": {"max_lanes": 1}, "train": {**case["train"], "evaluate_every": 0}}
    system = hosted(load(spec), "one")
    trainer = Trainer(system, plan_with(system, kind, slack), seed=seed)
    found: float = trainer.train(steps=steps).returns["eval_mean"]
    return found


def run(quick: bool, data: Path | None) -> Part:
    seeds = range(1) if quick else range(5)
    rows, values, left_out = [], [], []
    for name, case in CASES.items():
        steps = 3000 if quick else case["train"]["steps"]
        for kind in KINDS:
            for slack in (0, 4) if quick else LAGS:
                found = [final_return(case, kind, slack, seed, steps) for seed in seeds]
                middle, spread = statistics.median(found), max(found) - min(found)
                rows.append([name, kind, str(slack), f"{middle:,.0f}", f"{spread:,.0f}"])
                values.append({"case": name, "kind": kind, "slack": slack, "returns": found})
    if quick:
        left_out.append("staleness: slack 1 and 16, 5 seeds, whole runs")
    columns = ["run", "slack of", "slack", "median return", "spread"]
    return Part("return against staleness", columns, rows, [], left_out, {"staleness": values})
