"""TD3 (Fujimoto, van Hoof, Meger 2018): the update, and the fused sample–update–priorities. Native.

DDPG with two critics, whose smaller target value counts; clipped noise on the target action
(section 5.3 of the paper); and an actor that moves, with all targets, only in every policy_delay-th
gradient step (section 5.2). Acting is that of DDPG.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import forward
from pearl_devices.primitives.math.rng import normals, stream_base
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.updates import critics, iterations
from pearl_devices.primitives.updates.critics import (
    critic_step,
    follow_target,
    join,
    least_of_targets,
    sample_batch,
    update_priorities,
)
from pearl_devices.primitives.updates.ddpg import ascend, bind_inference, infer, squash
from pearl_devices.primitives.updates.stop_word import call_ends


class Td3Scratch(NamedTuple):
    """joined (B, O + A), noise (B, A), wanted (B), parts (B), none (0)."""

    joined: Any
    noise: Any
    wanted: Any
    parts: Any
    none: Any


@fast
def smooth(action, noise, smoothing, low, high):
    """Add clipped noise to target actions, within the bounds, in place.

    smoothing: standard deviation and limit of the noise, as shares of half the range.
    """
    deviation, limit = np.float32(smoothing[0]), np.float32(smoothing[1])
    for r in range(action.shape[0]):
        for c in range(action.shape[1]):
            half = np.float32(0.5) * (high[c] - low[c])
            offset = min(max(deviation * noise[r, c], -limit), limit)
            action[r, c] = min(max(action[r, c] + half * offset, low[c]), high[c])


@fast
def step(s, batch, rules, smoothing, delay, actor, critic1, critic2, own):
    """Take gradient step number s of a firing."""
    obs, next_obs = batch.obs[s], batch.next_obs[s]
    weight, td, low, high = batch.weight[s], batch.td[s], rules.low, rules.high
    count, a = own.noise.shape
    rules.count[0] += 1
    normals(stream_base(rules.rng[0], rules.rng[1]), 0, own.noise.reshape(count * a))
    rules.rng[1] += np.uint64(1)

    ahead = forward(actor.target, actor.layers, next_obs, actor.acts, False)
    squash(ahead, low, high)
    smooth(ahead, own.noise, smoothing, low, high)
    join(next_obs, ahead, own.joined)
    least_of_targets(critic1, critic2, own.joined, own.wanted)
    for b in range(count):
        own.wanted[b] = batch.reward[s, b] + batch.discount[s, b] * own.wanted[b]
        td[b] = np.float32(0.0)
    join(obs, batch.action[s], own.joined)
    critic_step(critic1, own.joined, own.wanted, weight, td, own.parts, rules)
    critic_step(critic2, own.joined, own.wanted, weight, td, own.parts, rules)

    if rules.count[0] % delay == 0:
        ascend(actor, critic1, obs, rules, own)
    if rules.every[0] > 0 or rules.count[0] % delay == 0:
        follow_target(actor, rules)
        follow_target(critic1, rules)
        follow_target(critic2, rules)


@fast_apart
def learn(source, batch, rules, smoothing, delay, actor, critic1, critic2, own):
    for s in range(rules.stop[1], batch.td.shape[0]):
        sample_batch(source, batch, s)
        step(s, batch, rules, smoothing, delay, actor, critic1, critic2, own)
        update_priorities(source, batch, s)
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_td3", infer, learn)


def _arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    size, act, inputs = kernel.dim("batch"), kernel.dim("act"), kernel.layers("critic1")[0]
    shapes = ((size, inputs), (size, act), (size,), (size,), (0,))
    return (
        *critics.learn_arguments(kernel, buffers),
        buffers["hyper.smoothing"],
        kernel.dim("policy_delay"),
        *(critics.net_of(name, kernel, buffers) for name in ("actor", "critic1", "critic2")),
        Td3Scratch._make(np.zeros(shape, np.float32) for shape in shapes),
    )


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.td3: `steps` times sample, update, and (prioritised) priorities, in one call; or
    update.td3: `steps` gradient steps on batch.*. The mean |TD error| of both critics goes to
    batch.td."""
    return bind_call(learn, *_arguments(kernel, buffers))


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.td3: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
