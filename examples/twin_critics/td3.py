"""TD3 (Fujimoto, van Hoof, Meger 2018) as nine tasks for one step of the actor."""

import numpy as np

from examples.twin_critics import branches
from examples.twin_critics.branches import LEARNING, draw, half_of, record
from pearl.algorithms import td3
from pearl.algorithms.td3 import ACTIONS, POLICY, Options, losses
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import key
from pearl_devices.primitives.updates.critics import join
from pearl_devices.primitives.updates.ddpg import squash, unsquash_gradient
from pearl_devices.primitives.updates.td3 import smooth

__all__ = ["ACTIONS", "LEARNING", "POLICY", "Options", "graph", "initialise", "losses"]

ACTOR = ("learner.actor", "learner.actor.target", "hyper.smoothing", "act.")
SEEN = ("batch.obs", "critic1.own", "critic1.slope", "learner.actor", "act.")
(ACT1, CLIMB1), (ACT2, CLIMB2) = (
    (
        record("td3:act", (*ACTOR, "batch.next_obs", "batch.obs"), (f"rng.act{i}",), (f"act{i}.",)),
        record("td3:climb", (*SEEN, f"act{i}.pass"), (), (f"climb{i}.",)),
    )
    for i in (1, 2)
)
LEARN = record(
    "branches:update",
    ("critic1.td", "critic2.td", "climb1.", "climb2.", "hyper.", "act.low", "act.high"),
    ("learner.step", "learner.actor", "learner.actor.", "loss.actor"),
    ("batch.td",),
)


def graph(system):
    delay = system.algorithm.policy_delay
    return branches.split(td3.graph(system), "td3", steps=delay, followed=1)


def initialise(buffers, system, seed):
    td3.initialise(buffers, system, seed)
    for name in ("rng.act1", "rng.act2"):  # the numbers that the shipped update draws
        buffers[name][0] = key(seed, "update")


def act(k, a):
    """Bind the target actor's next actions with clipped noise, and the actor's present ones."""
    layers, rows, name = k.layers("actor"), half_of(k), f"act{k.dim('number')}"
    widths, (acts, _) = np.array(layers, np.int64), scratch(layers, k.dim("batch") // 2)
    low, high, rng, inputs = a["act.low"], a["act.high"], a[f"rng.{name}"], a[f"{name}.next"]
    noise = a[f"{name}.noise"]

    def fire():
        for s in range(k.dim("steps")):
            draw(rng, rows.start * k.dim("act"), noise)
            rng[1] += np.uint64(1)
            seen = a["batch.next_obs"][s, rows]
            action = forward(a["learner.actor.target"], widths, seen, acts, False)
            squash(action, low, high)
            smooth(action, noise, a["hyper.smoothing"], low, high)
            join(seen, action, inputs[s])
        seen = a["batch.obs"][-1, rows]
        action = forward(a["learner.actor"], widths, seen, a[f"{name}.pass"], False)
        squash(action, low, high)
        join(seen, action, a[f"{name}.own"])

    return fire


def climb(k, a):
    """Bind the actor's gradient along the first critic's slope."""
    layers, rows, i = k.layers("actor"), half_of(k), k.dim("number")
    widths, (_, deltas) = np.array(layers, np.int64), scratch(layers, k.dim("batch") // 2)
    half, size, passed = rows.stop - rows.start, k.dim("act"), a[f"act{i}.pass"]
    action, d = (x.reshape(half, size) for x in (passed[-half * size :], deltas[: half * size]))

    def fire():
        a[f"climb{i}.loss"][0] = -a["critic1.own"][rows].sum() / k.dim("batch")
        d[:] = a["critic1.slope"][rows]
        unsquash_gradient(action, d, a["act.low"], a["act.high"])
        rest = (deltas, a[f"climb{i}.grad"], np.int64(0), d, False)
        seen = a["batch.obs"][-1, rows]
        backward(a["learner.actor"], widths, seen, passed, half, half, *rest)

    return fire
