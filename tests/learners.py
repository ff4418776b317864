"""Small systems with several learners, and plans that have each on a lane of its own."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from pearl import solve
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plans import Plan
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from tests.lanes import replay_spec, spread, untimed

SLOW: dict[str, Any] = {"learning_rate": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "dqn": SLOW,
    "dqn, prioritised": {
        **SLOW,
        "num_envs": 4,
        "replay": {"capacity": 1000, "kind": "prioritised", "fanout": 8},
    },
    "ppo": {"name": "ppo", "rollout_steps": 16, "minibatches": 4, "epochs": 3},
    "a2c": {"name": "a2c", "rollout_steps": 8},
}


def spec_of(case: str, **limits: Any) -> dict[str, Any]:
    """A spec in which a firing of learn takes several gradient steps, of rows that 4 divides."""
    options = CASES[case]
    if "name" not in options:
        return replay_spec("dqn", limits, **options)
    spec = replay_spec("dqn", limits)
    spec["algorithm"] = {"env": "CartPole-v1", "num_envs": 4, "hidden": [16, 16], **options}
    return spec


@functools.cache
def planned_with(case: str, learners: int, reduction: Any = None) -> tuple[System, Plan]:
    """A system with so many learners on a host of four cores, whatever this one has, and its plan
    of one lane, in which torch computes all gradient steps."""
    system = load(spec_of(case, max_lanes=4))
    given = {"learners": learners} | ({"reduction": reduction} if reduction else {})
    raw = {**system.raw, "limits": {**system.raw["limits"], **given}}
    system = replace(system, raw=raw, limits=replace(system.limits, **given))
    host = replace(system.platform.devices[0], width=4, max_lanes=4)
    system = replace(system, platform=replace(system.platform, devices=(host,)))
    graph, limits = build_graph(system), replace(system.limits, variants={"learn": ("torch",)})
    sheet = build_cost_table(graph, untimed(system).platform, limits)
    modes = tuple(m for m in sheet.modes if len(m.tasks) == 1)
    costs = replace(sheet, platform=system.platform, modes=modes)
    return system, solve(graph, costs, limits=replace(limits, max_lanes=1), time_limit_s=600.0)


def apart(plan: Plan) -> Plan:
    """The plan with every learner but the first on a lane of its own."""
    lane = {t.task: t.task.rpartition("_")[2] for t in plan.tasks}
    parts = ("gradient_", "average_", "learn_")
    return spread(
        plan, {t: int(n) if t.startswith(parts) and n.isdigit() else 0 for t, n in lane.items()}
    )


def but_for_gradients(names: list[str]) -> list[str]:
    """The names but for those of gradients and their means, whose arrays a reduction cuts."""
    return [n for n in names if not n.startswith(("gradient.", "mean."))]
