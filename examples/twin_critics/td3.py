"""TD3 (Fujimoto, van Hoof, Meger 2018) as a graph of seven tasks for one step of the actor."""

import numpy as np

from examples.twin_critics import branches
from examples.twin_critics.branches import RULES, draw, record
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
AHEAD = record("td3:ahead", NEXT, ("rng.ahead",), ("ahead.",))
OWN = record("td3:own", ("learner.actor", "batch.obs", "act."), (), ("own.input", "own.acts"))
SEEN = ("batch.obs", "own.acts", "critic1.", "critic2.td", "hyper.", "act.")
ACTOR = ("learner.step", "learner.actor", "learner.actor.", "loss.actor")
UPDATE = record("td3:update", SEEN, ACTOR, ("batch.td",))


def graph(system):
    return branches.split(td3.graph(system), "td3", system.algorithm.policy_delay)


def initialise(buffers, system, seed):
    td3.initialise(buffers, system, seed)
    buffers["rng.ahead"][0] = key(seed, "update")  # the numbers that the shipped update draws


def ahead(k, a):
    """Bind the target actor's actions with clipped noise."""
    widths, rows = k.layers("actor"), k.dim("batch")
    layers, (acts, _) = np.array(widths, np.int64), scratch(widths, rows)
    noise, low, high = np.zeros((rows, k.dim("act")), np.float32), a["act.low"], a["act.high"]

    def fire():
        for s, seen in enumerate(a["batch.next_obs"]):
            draw(a["rng.ahead"], 0, noise)
            action = forward(a["learner.actor.target"], layers, seen, acts, False)
            squash(action, low, high)
            smooth(action, noise, a["hyper.smoothing"], low, high)
            join(seen, action, a["ahead.input"][s])

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
