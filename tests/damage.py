"""Checkpoints with a number changed, each gone on from: `python -m tests.damage FOLDER N CASE …`.

A run of its own, since native code that indexes by a damaged number ends the process. Exit status 0
where each is refused in a sentence or trains on.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pearl.errors import SpecError
from pearl.training.checkpoints import checkpoint, restoring
from pearl.training.trainer import CHECKPOINT, Trainer
from tests.lanes import planned, replay_spec

SLACK = {"policy_lag": 2, "prefetch": 1, "insertion_lag": 1}
TREE = {"replay": {"capacity": 400, "kind": "prioritised", "fanout": 8}, "n_step": 3}
FRAMES = {
    "env": "tests.training.test_frames:Noise",
    "frame_stack": 3,
    "num_envs": 2,
    "learning_starts": 20,
}
ACTING = {"env": "CartPole-v1", "num_envs": 4}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dqn": ("dqn", {"max_lanes": 1}, TREE),
    "slack": ("dqn", {**SLACK, "priority_staleness": 2}, TREE),
    "frames": ("dqn", {"max_lanes": 1}, {**TREE, **FRAMES}),
    "ddpg": ("ddpg", {"max_lanes": 1}, {}),
    "td3": ("td3", SLACK, {}),
    "sac": ("sac", {"max_lanes": 1}, {}),
    "ppo": ("ppo", {"max_lanes": 1}, {**ACTING, "rollout_steps": 16, "minibatches": 2}),
    "a2c": ("a2c", {"max_lanes": 1}, {**ACTING, "rollout_steps": 8}),
    "q_learning": ("q_learning", {"max_lanes": 1}, {**ACTING, "env": "FrozenLake-v1"}),
    "sarsa": ("sarsa", {"max_lanes": 1}, {**ACTING, "env": "FrozenLake-v1"}),
}
STEPS, MORE = 480, 96
VALUES = (-1, -5, 1, 3, 255, 10**9, 2**62 + 1, 2**63 - 1, -(2**63))


def trainer_of(case: str) -> Trainer:
    name, limits, options = CASES[case]
    spec = replay_spec("dqn", limits)
    if name in ("dqn", "ddpg", "td3", "sac"):
        spec = replay_spec(name, limits, **options)
    else:
        spec["algorithm"] = {"name": name, **options}
    spec["limits"].setdefault("max_lanes", 3)
    system, plan = planned(spec, variants=("native", "gymnasium"))
    return Trainer(system, plan, seed=3)


def names(trainer: Trainer) -> list[str]:
    """The arrays whose numbers something is indexed, counted or looped by."""
    found = []
    for name, array in trainer.session.arrays.items():
        limited = restoring.value_bounds(
            name, trainer.session.arrays, trainer.graph, trainer.system
        )
        if array.dtype.kind in "iu" or limited is not None:
            found.append(name)
    return sorted(found)


def main(folder: Path, count: int, case: str) -> None:
    print(case, flush=True)
    trainer = trainer_of(case)
    trainer.train(steps=STEPS, out=folder)
    stored = checkpoint.load(folder / CHECKPOINT)
    sound = {name: stored.read(name) for name in stored.places}
    generator, refused = random.Random(case), 0
    damaged = [n for n in names(trainer) if sound[n].size]
    first = [(n, v) for n in damaged for v in (-5, 10**9)]
    for turn in range(count):
        name, value = generator.choice(damaged), generator.choice(VALUES)
        if count > len(first) and turn < len(first):
            name, value = first[turn]
        array = sound[name].copy()
        at = generator.randrange(array.size)
        with np.errstate(all="ignore"):
            array.flat[at] = np.array(value).astype(array.dtype)
        checkpoint.save(folder / CHECKPOINT, {**sound, name: array}, stored.about)
        print(f"{name}[{at}] = {array.flat[at]}", end=": ", flush=True)
        problems: tuple[str, ...] = ()
        try:
            run = trainer.train(steps=STEPS + MORE, out=folder, resume=True)
            print(run.status, run.message or "", flush=True)
            assert run.status == "done", run.message
        except SpecError as error:
            problems = error.problems
            print(error, flush=True)
        refused += len(problems) > 0
        if name not in (restoring.CURSOR, restoring.CLOCK):  # lengths of other arrays follow these
            assert len(problems) <= 1
            assert all(name in line for line in problems)
    assert refused
    print(f"{count} damaged, {refused} refused")


if __name__ == "__main__":
    for case in sys.argv[3:]:
        main(Path(sys.argv[1]) / case, int(sys.argv[2]), case)
