"""DDPG (Lillicrap et al. 2016): inference, update, and the fused sample–update–priorities.
Native.

The actor's linear output z becomes the action middle + half · tanh(z) of act.low … act.high. The
critic's input is the observation followed by the action. A gradient step moves the critic first,
then the actor through the updated critic, then both targets.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import backward, forward, scratch, td_gradient, total
from pearl_devices.primitives.math.rng import normal, stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.updates import critics, iterations
from pearl_devices.primitives.updates.critics import (
    descend,
    follow_target,
    join,
    sample_batch,
    update_priorities,
)
from pearl_devices.primitives.updates.stop_word import call_ends


class DdpgScratch(NamedTuple):
    """joined (B, O + A), wanted (B), parts (B), none (0)."""

    joined: Any
    wanted: Any
    parts: Any
    none: Any


@fast
def squash(z, low, high):
    """Outputs (rows, A) → actions between the bounds, in place."""
    for r in range(z.shape[0]):
        for c in range(z.shape[1]):
            half = np.float32(0.5) * (high[c] - low[c])
            z[r, c] = low[c] + half + half * np.float32(math.tanh(np.float64(z[r, c])))


@fast
def unsquash_gradient(a, d, low, high):
    """The derivative by the actions `a` → the derivative by the outputs before tanh, in place."""
    for r in range(a.shape[0]):
        for c in range(a.shape[1]):
            half = np.float32(0.5) * (high[c] - low[c])
            t = (a[r, c] - low[c] - half) / half
            d[r, c] *= half * (np.float32(1.0) - t * t)


@fast
def explore_around(rng, mean, low, high, explore, action):
    """Compute actions (N, A) from the actor's outputs: squashed (in place), plus Gaussian noise,
    clipped; uniform at the start.

    Uses one firing of the random stream; component c of environment n draws number n · A + c.
    """
    squash(mean, low, high)
    base = stream_base(rng[0], rng[1])
    n, a = action.shape
    start = np.float64(rng[1]) * n < explore[3]
    for r in range(n):
        for c in range(a):
            if start:
                value = low[c] + (np.float64(high[c]) - low[c]) * uniform(base, r * a + c)
            else:
                half = 0.5 * (np.float64(high[c]) - low[c])
                value = mean[r, c] + explore[0] * half * normal(base, r * a + c)
            action[r, c] = min(max(np.float32(value), low[c]), high[c])
    rng[1] += np.uint64(1)


@fast_apart
def infer(rng, obs, params, explore, low, high, action, layers, acts):
    mean = forward(params, layers, obs, acts, False)
    explore_around(rng, mean, low, high, explore, action)


@fast
def ascend(actor, critic, obs, rules, own):
    """Take one step of the actor towards actions with higher values by `critic`."""
    rows, low, high = obs.shape[0], rules.low, rules.high
    mine = forward(actor.params, actor.layers, obs, actor.acts, False)
    a = mine.shape[1]
    squash(mine, low, high)
    join(obs, mine, own.joined)
    value = forward(critic.params, critic.layers, own.joined, critic.acts, False)
    for b in range(rows):
        critic.deltas[b] = np.float32(-1.0) / np.float32(rows)
    actor.loss[0] = -total(value.reshape(rows)) / np.float32(rows)
    d = actor.deltas[: rows * a].reshape(rows, a)
    backward(
        critic.params, critic.layers, own.joined, critic.acts, rows, rows, critic.deltas, own.none,
        a, d, False,
    )  # fmt: skip
    unsquash_gradient(mine, d, low, high)
    backward(
        actor.params, actor.layers, obs, actor.acts, rows, rows, actor.deltas, actor.grad,
        np.int64(0), d, False,
    )  # fmt: skip
    descend(actor, rules)


@fast_apart
def step(s, batch, rules, actor, critic, own):
    """Take gradient step number s of a firing, of the critic and then of the actor."""
    obs, next_obs, td = batch.obs[s], batch.next_obs[s], batch.td[s]
    rows, delta = obs.shape[0], np.float32(rules.huber[0])
    rules.count[0] += 1
    ahead = forward(actor.target, actor.layers, next_obs, actor.acts, False)
    squash(ahead, rules.low, rules.high)
    join(next_obs, ahead, own.joined)
    value = forward(critic.target, critic.layers, own.joined, critic.acts, False)
    for b in range(rows):
        own.wanted[b] = batch.reward[s, b] + batch.discount[s, b] * value[b, 0]
    join(obs, batch.action[s], own.joined)
    value = forward(critic.params, critic.layers, own.joined, critic.acts, False)
    for b in range(rows):
        error = value[b, 0] - own.wanted[b]
        td[b] = abs(error)
        own.parts[b], critic.deltas[b] = td_gradient(error, batch.weight[s, b], rows, delta)
    critic.loss[0] = total(own.parts)
    backward(
        critic.params, critic.layers, own.joined, critic.acts, rows, rows, critic.deltas,
        critic.grad, np.int64(0), own.joined, False,
    )  # fmt: skip
    descend(critic, rules)
    ascend(actor, critic, obs, rules, own)
    follow_target(critic, rules)
    follow_target(actor, rules)


@fast_apart
def learn(source, batch, rules, actor, critic, own):
    for s in range(rules.stop[1], batch.td.shape[0]):
        sample_batch(source, batch, s)
        step(s, batch, rules, actor, critic, own)
        update_priorities(source, batch, s)
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_ddpg", infer, learn)


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.ddpg: act.action ← policy.actor with Gaussian noise, within the bounds."""
    layers = kernel.layers()
    acts, _ = scratch(layers, kernel.dim("envs"))
    names = (
        "rng.inference", "env.obs", "policy.actor", "explore", "act.low", "act.high", "act.action"
    )  # fmt: skip
    return bind_call(infer, *(buffers[name] for name in names), np.array(layers, np.int64), acts)


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.ddpg: `steps` times sample, update, and (prioritised) priorities, in one call; or
    update.ddpg: `steps` gradient steps on batch.*. Absolute TD errors go to batch.td."""
    size, inputs = kernel.dim("batch"), kernel.layers("critic")[0]
    shapes = ((size, inputs), (size,), (size,), (0,))
    return bind_call(
        learn,
        *critics.learn_arguments(kernel, buffers),
        *(critics.net_of(name, kernel, buffers) for name in ("actor", "critic")),
        DdpgScratch._make(np.zeros(shape, np.float32) for shape in shapes),
    )


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.ddpg: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
