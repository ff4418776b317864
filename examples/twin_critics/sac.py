"""SAC (Haarnoja et al. 2018b) as eight tasks for one gradient step."""

import math

import numpy as np

from examples.twin_critics import branches
from examples.twin_critics.branches import draw, half_of, record
from pearl.algorithms import sac
from pearl.algorithms.sac import ACTIONS, POLICY, Options, losses
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import key
from pearl_devices.primitives.updates.critics import descend, join, net_of, rules_of
from pearl_devices.primitives.updates.sac import HIGHEST, LOWEST, sample

__all__ = ["ACTIONS", "LEARNING", "POLICY", "Options", "graph", "initialise", "losses"]

LEARNING = ("replay_sample", *branches.TASKS, "param_sync")
ACTS = ("learner.actor", "act.")
NEXT = (*ACTS, "learner.alpha", "batch.next_obs")
AHEAD1, AHEAD2 = (record("sac:ahead", NEXT, (f"rng.ahead{i}",), (f"ahead{i}.",)) for i in (1, 2))
OWN = record("sac:own", (*ACTS, "batch.obs"), ("rng.own",), ("own.",))
SEEN = ("batch.obs", "own.", "critic1.", "critic2.", "hyper.", "act.")
ACTOR = ("learner.step", "learner.actor", "learner.actor.", "loss.actor")
ALPHA = ("learner.alpha", "learner.alpha.", "loss.alpha")
UPDATE = record("sac:update", SEEN, (*ACTOR, *ALPHA), ("batch.td",))


def graph(system):
    return branches.split(sac.graph(system), "sac", steps=1, followed=2)


def initialise(buffers, system, seed):
    sac.initialise(buffers, system, seed)
    for name in (
        "rng.ahead1",
        "rng.ahead2",
        "rng.own",
    ):  # the numbers that the shipped update draws
        buffers[name][0] = key(seed, "update")


def ahead(k, a):
    """Bind sampled next actions; their bonus is the entropy's part of the value."""
    layers, rows, i = k.layers("actor"), half_of(k), k.dim("number")
    half, act, seen = k.dim("batch") // 2, k.dim("act"), a["batch.next_obs"][0, rows]
    widths, (acts, _) = np.array(layers, np.int64), scratch(layers, half)
    noise, squashed, action = (np.zeros((half, act), np.float32) for _ in range(3))
    log_prob = np.zeros(half, np.float32)

    def fire():
        draw(a[f"rng.ahead{i}"], rows.start * act, noise)
        z = forward(a["learner.actor"], widths, seen, acts, False)
        sample(z, noise, a["act.low"], a["act.high"], squashed, action, log_prob)
        join(seen, action, a[f"ahead{i}.input"][0])
        a[f"ahead{i}.bonus"][0] = -np.float32(math.exp(a["learner.alpha"][0])) * log_prob

    return fire


def own(k, a):
    layers, seen = np.array(k.layers("actor"), np.int64), a["batch.obs"][0]
    noise, log_prob = a["own.noise"], a["own.log_prob"]
    action, begin = np.zeros_like(noise), noise.size + noise.size % 2

    def fire():
        draw(a["rng.own"], begin, noise)
        z = forward(a["learner.actor"], layers, seen, a["own.acts"], False)
        sample(z, noise, a["act.low"], a["act.high"], a["own.squashed"], action, log_prob)
        join(seen, action, a["own.input"])

    return fire


def update(k, a):
    """Bind the actor's step along the slope of the critic of smaller value, then alpha's."""
    rows, act = k.dim("batch"), k.dim("act")
    actor, alpha = (net_of(name, k, a) for name in ("actor", "alpha"))
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64)})
    raw = a["own.acts"][-rows * 2 * act :].reshape(rows, 2 * act)[:, act:]
    d = actor.deltas[: rows * 2 * act].reshape(rows, 2 * act)
    half, share = 0.5 * (a["act.high"] - a["act.low"]), np.float32(1.0 / rows)

    def fire():
        a["batch.td"][:] = a["critic1.td"] + a["critic2.td"]
        a["learner.step"][0] += 1
        temperature, t = np.float32(math.exp(alpha.params[0])), a["own.squashed"]
        first, second, log_prob = a["critic1.own"], a["critic2.own"], a["own.log_prob"]
        actor.loss[0] = (temperature * log_prob - np.minimum(first, second)).mean()
        least = (first <= second)[:, None]
        slope = np.where(least, a["critic1.slope"], a["critic2.slope"]) * half * (1 - t * t)
        slope += share * temperature * 2 * t
        d[:, :act] = slope
        spread = slope * np.exp(raw) * a["own.noise"] - share * temperature
        d[:, act:] = np.where((raw >= LOWEST) & (raw <= HIGHEST), spread, 0)
        sizes = (rows, rows, actor.deltas, actor.grad, np.int64(0), d, False)
        backward(actor.params, actor.layers, a["batch.obs"][0], a["own.acts"], *sizes)
        descend(actor, rules)
        excess = log_prob.mean() + np.float32(a["hyper.target_entropy"][0])
        alpha.loss[0], alpha.grad[0] = -alpha.params[0] * excess, -excess
        descend(alpha, rules)

    return fire
