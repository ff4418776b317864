"""What runs teach: the shipped specs of this host, predicted by its calibration alone, and once
one run of each is known.

Each is planned and trained without what runs have taught, all in turn, and all once more by the
same estimates: identical runs, whose difference no estimate can know. Then what the first ones
taught is put together, and each is planned and trained a third time. Measured are env steps per
second net of the time in which something else had the core (`drift.waited`), so that a loaded
machine changes little; the share is in the table. The record of this host has afterwards what these
runs taught.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pearl
from benchmarks.bars import Part, at_most
from pearl.planning.runs import Run
from pearl_estimators.host.calibration_file import load_calibration, store
from pearl_estimators.host.measuring import calibrate
from pearl_estimators.host.run_corrections import IterationStats

SPECS = (
    "a2c_cartpole", "ddpg_pendulum", "dqn_cartpole", "ppo_cartpole", "ppo_pendulum",
    "q_learning_frozenlake", "sac_pendulum", "sarsa_cliffwalking", "td3_pendulum",
)  # fmt: skip
ALONE = {"train.evaluate_every": 0, "train.final_episodes": 0, "train.checkpoint_every": 0}
RUN_S = 2.0
MEDIAN, WORST, AFTER = 0.10, 0.20, 0.05


def taught(to: tuple[IterationStats, ...]) -> None:
    """Have the record of this host know these runs and no others."""
    known = load_calibration()
    assert known is not None
    store(replace(known, learned=to))


def trained(name: str) -> tuple[float, Run]:
    """Measured / predicted seconds of an iteration, net of waits, and the run."""
    system = pearl.load(name, set=ALONE)
    plan = pearl.plan(system)
    predicted = plan.rates["env_steps_per_s"]
    start = getattr(system.algorithm, "learning_starts", 0)
    steps = math.ceil((start + RUN_S * predicted) / 0.9)
    run = pearl.compile(pearl.load(name, set={**ALONE, "train.steps": steps}), plan=plan).train()
    if run.drift is None or run.drift.measured_s is None:
        raise RuntimeError(f"{name}: {steps} env steps have no steady stretch")
    net_s = run.drift.measured_s * (1 - (run.drift.waited or 0.0))
    return net_s / run.drift.predicted_s, run


def run(quick: bool, data: Path | None) -> Part:
    """The table, with its bars. data: not needed."""
    del data
    calibrate()
    names = SPECS[:3] if quick else SPECS
    before, again, waits, found = {}, {}, {}, list[IterationStats]()
    for name in names:
        taught(())
        before[name], one = trained(name)
        waits[name] = [one.drift.waited if one.drift else None]
        known = load_calibration()
        found += known.learned if known else ()
    for name in names:
        taught(())
        again[name], same = trained(name)
        waits[name].append(same.drift.waited if same.drift else None)
    taught(tuple(found))
    rows: list[list[str]] = []
    after: dict[str, float] = {}
    for name in names:
        after[name], two = trained(name)
        waited = [*waits[name], two.drift.waited if two.drift else None]
        rows.append(
            [
                name, f"{before[name]:.3f}", f"{again[name]:.3f}", f"{after[name]:.3f}",
                ", ".join("-" if w is None else f"{w:.0%}" for w in waited),
            ],
        )  # fmt: skip
    repeats = [abs(again[name] / before[name] - 1) for name in names]
    differ = f"median {median(repeats):.1%}, worst {max(repeats):.1%}"
    rows.append(["identical runs differ by", "", differ, "", ""])
    off = [abs(x - 1) for x in before.values()]
    then = [abs(x - 1) for x in after.values()]
    bars = [
        at_most("by the calibration alone, median error", median(off), MEDIAN, "{:.1%}"),
        at_most("by the calibration alone, worst", max(off), WORST, "{:.1%}"),
        at_most("after one run of each, worst", max(then), AFTER, "{:.1%}"),
    ]
    columns = [
        "spec", "measured / predicted s", "the same again", "after a run of each", "had no core",
    ]  # fmt: skip
    left_out = [f"{len(SPECS) - len(names)} of {len(SPECS)} specs"] if quick else []
    values: dict[str, Any] = {"before": before, "again": again, "after": after}
    title = "Seconds of an iteration, net of waits, over those predicted"
    return Part(title, columns, rows, bars, left_out, values)
