"""TD3 (Fujimoto, van Hoof, Meger 2018) as eight tasks for one step of the actor."""

import numpy as np

from examples.twin_critics import branches
from examples.twin_critics.branches import draw, half_of, record
from pearl.algorithms import td3
from pearl.algorithms.td3 import ACTIONS, POLICY, Options, losses
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import key
from pearl_devices.primitives.updates.critics import (
    descend,
    follow_target,
    join,
    net_of,
    rules_of,
)
from pearl_devices.primitives.updates.ddpg import squash, unsquash_gradient
from pearl_devices.primitives.updates.td3 import smooth

__all__ = ["ACTIONS", "LEARNING", "POLICY", "Options", "graph", "initialise", "losses"]

LEARNING = ("replay_sample", *branches.TASKS, "param_sync")
NEXT = ("learner.actor.target", "batch.next_obs", "hyper.smoothing", "act.")
AHEAD1, AHEAD2 = (record("td3:ahead", NEXT, (f"rng.ahead{i}",), (f"ahead{i}.",)) for i in (1, 2))
OWN = record("td3:own", ("learner.actor", "batch.obs", "act."), (), ("own.input", "own.acts"))
SEEN = ("batch.obs", "own.acts", "critic1.", "critic2.td", "hyper.", "act.")
ACTOR = ("learner.step", "learner.actor", "learner.actor.", "loss.actor")
UPDATE = record("td3:update", SEEN, ACTOR, ("batch.td",))


def graph(system):
    return branches.split(td3.graph(system), "td3", steps=system.algorithm.policy_delay, followed=1)


def initialise(buffers, system, seed):
    td3.initialise(buffers, system, seed)
    for name in ("rng.ahead1", "rng.ahead2"):  # the numbers that the shipped update draws
        buffers[name][0] = key(seed, "update")


def ahead(k, a):
    """Bind the target actor's actions with clipped noise."""
    layers, rows, i = k.layers("actor"), half_of(k), k.dim("number")
    widths, (acts, _) = np.array(layers, np.int64), scratch(layers, k.dim("batch") // 2)
    low, high, inputs = a["act.low"], a["act.high"], a[f"ahead{i}.input"]
    noise = np.zeros((inputs.shape[1], k.dim("act")), np.float32)

    def fire():
        for s in range(k.dim("steps")):
            draw(a[f"rng.ahead{i}"], rows.start * k.dim("act"), noise)
            seen = a["batch.next_obs"][s, rows]
            action = forward(a["learner.actor.target"], widths, seen, acts, False)
            squash(action, low, high)
            smooth(action, noise, a["hyper.smoothing"], low, high)
            join(seen, action, inputs[s])

    return fire


def own(k, a):
    layers, seen = np.array(k.layers("actor"), np.int64), a["batch.obs"][-1]

    def fire():
        action = forward(a["learner.actor"], layers, seen, a["own.acts"], False)
        squash(action, a["act.low"], a["act.high"])
        join(seen, action, a["own.input"])

    return fire


def update(k, a):
    """Bind the actor's step along the first critic's slope."""
    rows, act, actor = k.dim("batch"), k.dim("act"), net_of("actor", k, a)
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64)})
    action = a["own.acts"][-rows * act :].reshape(rows, act)
    d = actor.deltas[: rows * act].reshape(rows, act)

    def fire():
        a["batch.td"][:] = a["critic1.td"] + a["critic2.td"]
        a["learner.step"][0] += k.dim("steps")
        actor.loss[0] = -a["critic1.own"].mean()
        d[:] = a["critic1.slope"]
        unsquash_gradient(action, d, a["act.low"], a["act.high"])
        sizes = (rows, rows, actor.deltas, actor.grad, np.int64(0), d, False)
        backward(actor.params, actor.layers, a["batch.obs"][-1], a["own.acts"], *sizes)
        descend(actor, rules)
        follow_target(actor, rules)

    return fire
