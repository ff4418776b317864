"""Environments that wait, one after the other and as the planner has them.

PPO with networks of 64-64 and 16 environments, a step of each of which sleeps 8 ms, as for a
simulator elsewhere. The same spec is trained as it is, with `limits.variants` that step the
environments in turn, and with the same environments in gymnasium's AsyncVectorEnv. Rates are those
of the steady stretch; the waits of this process for a core (`drift.waited`) are told and not taken
off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pearl
from benchmarks.bars import Bar, Part

ENVS, MS = 16, 8.0
STEPS = {"as planned": 25_600, "in turn": 3_072, "vector environment": 25_600}
LEAST, NEAR = 8.0, 0.25
"""Asked: times the rate of stepping in turn, and how far the prediction may be off."""


def trained(way: str) -> pearl.Run:
    spec: dict[str, Any] = {
        "algorithm": {
            "name": "ppo",
            "env": "benchmarks.slow_env:sleeping",
            "env_args": {"ms": MS},
            "num_envs": ENVS,
            "rollout_steps": 32,
            "hidden": [64, 64],
            "epochs": 2,
            "minibatches": 4,
        },
        "train": {"steps": STEPS[way], "evaluate_every": 0, "final_episodes": 0},
    }
    if way == "vector environment":
        spec["algorithm"]["env"] = "benchmarks.slow_env:sleeping_together"
    if way == "in turn":
        spec["limits"] = {"variants": {"step": ["gymnasium"]}}
    return pearl.compile(spec).train()


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others; quick changes nothing."""
    rows, rates, kept = [], {}, {}
    for way in STEPS:
        found = trained(way)
        measured, predicted = found.env_steps_per_s, found.predicted_env_steps_per_s
        assert measured is not None
        assert predicted is not None
        rates[way] = measured, measured / predicted
        waited = found.drift.waited if found.drift else None
        variant = found.plan.task("step").variant
        shown = [f"{predicted:,.0f}", f"{measured:,.0f}", f"{measured / predicted:.2f}"]
        rows.append([way, variant, *shown, "" if waited is None else f"{waited:.0%}"])
        kept[way] = {"predicted": predicted, "measured": measured, "waited": waited}
    times = rates["as planned"][0] / rates["in turn"][0]
    bars = [
        Bar("rate over stepping in turn", f"{times:.1f}", f"at least {LEAST:g}", times >= LEAST)
    ]
    for way, (_, ratio) in rates.items():
        off, what = ratio - 1, f"{way}: measured over predicted - 1"
        bars.append(Bar(what, f"{off:+.0%}", f"within {NEAR:.0%}", abs(off) <= NEAR))
    columns = ["way", "step", "predicted env steps/s", "measured", "ratio", "no core"]
    return Part("waiting", columns, rows, bars, [], {"rates": kept})
