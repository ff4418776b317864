"""SAC (Haarnoja et al. 2018b) as nine tasks for one gradient step."""

import math

import numpy as np

from examples.twin_critics import branches
from examples.twin_critics.branches import LEARNING, draw, half_of, record
from pearl.algorithms import sac
from pearl.algorithms.sac import ACTIONS, POLICY, Options, losses
from pearl_devices.primitives.math.nets import backward, forward, scratch
from pearl_devices.primitives.math.rng import key
from pearl_devices.primitives.updates.critics import descend, join, net_of, rules_of
from pearl_devices.primitives.updates.sac import HIGHEST, LOWEST, sample

__all__ = ["ACTIONS", "LEARNING", "POLICY", "Options", "graph", "initialise", "losses"]

ACTOR = ("learner.actor", "learner.alpha", "batch.obs", "act.low", "act.high")
SLOPES = ("critic1.own", "critic2.own", "critic1.slope", "critic2.slope")
(ACT1, CLIMB1), (ACT2, CLIMB2) = (
    (
        record("sac:act", (*ACTOR, "batch.next_obs"), (f"rng.act{i}",), (f"act{i}.",)),
        record("sac:climb", (*ACTOR, *SLOPES, f"act{i}."), (), (f"climb{i}.",)),
    )
    for i in (1, 2)
)
STATE = ("learner.step", "learner.actor", "learner.actor.", "loss.actor")
LEARN = record(
    "sac:update",
    ("critic1.td", "critic2.td", "climb1.", "climb2.", "act1.log_prob", "act2.log_prob", "hyper.",
     "act.low", "act.high"),
    (*STATE, "learner.alpha", "learner.alpha.", "loss.alpha"),
    ("batch.td",),
)  # fmt: skip


def graph(system):
    return branches.split(sac.graph(system), "sac", steps=1, followed=2)


def initialise(buffers, system, seed):
    sac.initialise(buffers, system, seed)
    for name in ("rng.act1", "rng.act2"):  # the numbers that the shipped update draws
        buffers[name][0] = key(seed, "update")


def act(k, a):
    """Bind sampled actions; the bonus of the next ones is the entropy's part of the value."""
    layers, rows, name, size = k.layers("actor"), half_of(k), f"act{k.dim('number')}", k.dim("act")
    widths, (acts, _) = np.array(layers, np.int64), scratch(layers, k.dim("batch") // 2)
    rng, noise, squashed, log_prob = (
        a[n] for n in (f"rng.{name}", f"{name}.noise", f"{name}.squashed", f"{name}.log_prob")
    )
    action = np.zeros_like(noise)

    def choose(number, seen, acts, inputs):
        draw(rng, (number * k.dim("batch") + rows.start) * size, noise)
        z = forward(a["learner.actor"], widths, seen, acts, False)
        sample(z, noise, a["act.low"], a["act.high"], squashed, action, log_prob)
        join(seen, action, inputs)

    def fire():
        choose(0, a["batch.next_obs"][0, rows], acts, a[f"{name}.next"][0])
        a[f"{name}.bonus"][0] = -np.float32(math.exp(a["learner.alpha"][0])) * log_prob
        choose(1, a["batch.obs"][0, rows], a[f"{name}.pass"], a[f"{name}.own"])
        rng[1] += np.uint64(1)

    return fire


def climb(k, a):
    """Bind the actor's gradient along the slope of the critic of smaller value."""
    layers, rows, i, size = k.layers("actor"), half_of(k), k.dim("number"), k.dim("act")
    half, share = k.dim("batch") // 2, np.float32(1.0 / k.dim("batch"))
    widths, (_, deltas) = np.array(layers, np.int64), scratch(layers, half)
    raw = a[f"act{i}.pass"][-2 * half * size :].reshape(half, 2 * size)[:, size:]
    d = deltas[: 2 * half * size].reshape(half, 2 * size)
    spread = 0.5 * (a["act.high"] - a["act.low"])

    def fire():
        heat, t = np.float32(math.exp(a["learner.alpha"][0])), a[f"act{i}.squashed"]
        first, second = (a[f"critic{c}.own"][rows] for c in (1, 2))
        loss = heat * a[f"act{i}.log_prob"] - np.minimum(first, second)
        a[f"climb{i}.loss"][0] = share * loss.sum()
        slopes = [a[f"critic{c}.slope"][rows] for c in (1, 2)]
        slope = np.where((first <= second)[:, None], *slopes) * spread * (1 - t * t)
        slope += share * heat * 2 * t
        d[:, :size] = slope
        wide = slope * np.exp(raw) * a[f"act{i}.noise"] - share * heat
        d[:, size:] = np.where((raw >= LOWEST) & (raw <= HIGHEST), wide, 0)
        rest = (deltas, a[f"climb{i}.grad"], np.int64(0), d, False)
        seen, passed = a["batch.obs"][0, rows], a[f"act{i}.pass"]
        backward(a["learner.actor"], widths, seen, passed, half, half, *rest)

    return fire


def update(k, a):
    """Bind the steps of the actor and of the temperature."""
    move, alpha = branches.update(k, a), net_of("alpha", k, a)
    rules = rules_of({**a, "loop.stop": np.zeros(2, np.int64)})

    def fire():
        move()
        log_prob = (a["act1.log_prob"].sum() + a["act2.log_prob"].sum()) / k.dim("batch")
        excess = log_prob + np.float32(a["hyper.target_entropy"][0])
        alpha.loss[0], alpha.grad[0] = -alpha.params[0] * excess, -excess
        descend(alpha, rules)

    return fire
