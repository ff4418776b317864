"""SAC (Haarnoja et al. 2018b): inference, the update, and the fused sample–update–priorities.
Native.

The actor's outputs are the means and then the logarithms of the standard deviations (clamped to
LOG_STD) of a Gaussian u; the action is middle + half · tanh(u) of act.low … act.high. Its density
is that of tanh(u), so entropies are those of actions scaled to −1 … 1. The temperature is
exp(alpha), alpha a network of one parameter. A gradient step moves both critics, then the actor
through the updated critics, then alpha, then the critics' targets; it uses the temperature before
the step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import LOG_STD
from pearl_devices.primitives.math.nets import backward, forward, scratch, total
from pearl_devices.primitives.math.rng import normals, stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.updates import critics, iterations
from pearl_devices.primitives.updates.critics import (
    critic_step,
    descend,
    follow_target,
    join,
    least_of_targets,
    sample_batch,
    update_priorities,
)
from pearl_devices.primitives.updates.stop_word import call_ends

LOWEST, HIGHEST = np.float32(LOG_STD[0]), np.float32(LOG_STD[1])
LOG_2 = np.float32(math.log(2.0))
HALF_LOG_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))


class SacScratch(NamedTuple):
    """joined (B, O + A), noise, squashed, action (B, A each), slope1, slope2 (B, A), log_prob,
    wanted, parts (B each), none (0)."""

    joined: Any
    noise: Any
    squashed: Any
    action: Any
    slope1: Any
    slope2: Any
    log_prob: Any
    wanted: Any
    parts: Any
    none: Any


@fast
def sample(z, noise, low, high, squashed, action, log_prob):
    """Actions (B, A) of the outputs z (B, 2·A) and standard normal noise (B, A).

    squashed ← tanh(u), u = mean + deviation · noise. log_prob (B) ← Σ log N(u) − log(1 − tanh²(u)),
    with log(1 − tanh²(u)) = 2 (log 2 − |u| − log(1 + exp(−2|u|))), which no u overflows or cancels.
    """
    a = noise.shape[1]
    for r in range(noise.shape[0]):
        log_prob[r] = np.float32(0.0)
        for c in range(a):
            log_std = min(max(z[r, a + c], LOWEST), HIGHEST)
            u = z[r, c] + np.float32(math.exp(log_std)) * noise[r, c]
            size = abs(u)
            less = np.float32(math.expm1(-2.0 * np.float64(size)))
            t = -less / (np.float32(2.0) + less)
            squashed[r, c] = t if u > np.float32(0.0) else -t
            half = np.float32(0.5) * (high[c] - low[c])
            action[r, c] = low[c] + half + half * squashed[r, c]
            log_prob[r] -= np.float32(0.5) * noise[r, c] * noise[r, c] + log_std + HALF_LOG_2_PI
            rest = LOG_2 - size - np.float32(math.log1p(np.float64(np.float32(1.0) + less)))
            log_prob[r] -= np.float32(2.0) * rest


@fast
def draw_actions(rng, z, explore, low, high, action, noise):
    """Sample actions (N, A) from the policy; uniform at the start. Uses one firing of the
    stream."""
    base = stream_base(rng[0], rng[1])
    n, a = action.shape
    start = np.float64(rng[1]) * n < explore[3]
    rng[1] += np.uint64(1)
    if not start:
        normals(base, 0, noise.reshape(n * a))
    for r in range(n):
        for c in range(a):
            if start:
                span = np.float64(high[c]) - low[c]
                action[r, c] = np.float32(low[c] + span * uniform(base, r * a + c))
            else:
                log_std = min(max(z[r, a + c], LOWEST), HIGHEST)
                u = z[r, c] + np.float32(math.exp(log_std)) * noise[r, c]
                half = np.float32(0.5) * (high[c] - low[c])
                action[r, c] = low[c] + half + half * np.float32(math.tanh(np.float64(u)))


@fast_apart
def infer(rng, obs, params, explore, low, high, action, layers, acts, noise):
    draw_actions(rng, forward(params, layers, obs, acts, False), explore, low, high, action, noise)


@fast
def ascend(actor, critic1, critic2, obs, z, temperature, low, high, own):
    """The actor's gradient of mean(temperature · log prob − least value), for z's own sample."""
    count, a = own.noise.shape
    first = forward(critic1.params, critic1.layers, own.joined, critic1.acts, False)
    second = forward(critic2.params, critic2.layers, own.joined, critic2.acts, False)
    share = np.float32(1.0) / np.float32(count)
    for b in range(count):
        least = min(first[b, 0], second[b, 0])
        own.parts[b] = share * (temperature * own.log_prob[b] - least)
        critic1.deltas[b] = -share if first[b, 0] <= second[b, 0] else np.float32(0.0)
        critic2.deltas[b] = np.float32(0.0) if first[b, 0] <= second[b, 0] else -share
    actor.loss[0] = total(own.parts)
    backward(
        critic1.params, critic1.layers, own.joined, critic1.acts, count, count, critic1.deltas,
        own.none, a, own.slope1, False,
    )  # fmt: skip
    backward(
        critic2.params, critic2.layers, own.joined, critic2.acts, count, count, critic2.deltas,
        own.none, a, own.slope2, False,
    )  # fmt: skip
    d = actor.deltas[: count * 2 * a].reshape(count, 2 * a)
    for b in range(count):
        for c in range(a):
            t, raw = own.squashed[b, c], z[b, a + c]
            half = np.float32(0.5) * (high[c] - low[c])
            slope = (own.slope1[b, c] + own.slope2[b, c]) * half * (np.float32(1.0) - t * t)
            slope += share * temperature * np.float32(2.0) * t
            d[b, c] = slope
            d[b, a + c] = np.float32(0.0)
            if raw >= LOWEST and raw <= HIGHEST:
                spread = np.float32(math.exp(raw)) * own.noise[b, c]
                d[b, a + c] = slope * spread - share * temperature
    backward(
        actor.params,
        actor.layers,
        obs,
        actor.acts,
        count,
        count,
        actor.deltas,
        actor.grad,
        np.int64(0),
        d,
        False,
    )


@fast
def step(s, batch, rules, target_entropy, actor, critic1, critic2, alpha, own):
    """Take gradient step number s of a firing."""
    obs, next_obs = batch.obs[s], batch.next_obs[s]
    weight, td, low, high = batch.weight[s], batch.td[s], rules.low, rules.high
    count, a = own.noise.shape
    rules.count[0] += 1
    base, flat = stream_base(rules.rng[0], rules.rng[1]), own.noise.reshape(count * a)
    rules.rng[1] += np.uint64(1)
    temperature = np.float32(math.exp(alpha.params[0]))

    normals(base, 0, flat)
    z = forward(actor.params, actor.layers, next_obs, actor.acts, False)
    sample(z, own.noise, low, high, own.squashed, own.action, own.log_prob)
    join(next_obs, own.action, own.joined)
    least_of_targets(critic1, critic2, own.joined, own.wanted)
    for b in range(count):
        value = own.wanted[b] - temperature * own.log_prob[b]
        own.wanted[b] = batch.reward[s, b] + batch.discount[s, b] * value
        td[b] = np.float32(0.0)
    join(obs, batch.action[s], own.joined)
    critic_step(critic1, own.joined, own.wanted, weight, td, own.parts, rules)
    critic_step(critic2, own.joined, own.wanted, weight, td, own.parts, rules)

    normals(base, flat.size + flat.size % 2, flat)
    z = forward(actor.params, actor.layers, obs, actor.acts, False)
    sample(z, own.noise, low, high, own.squashed, own.action, own.log_prob)
    join(obs, own.action, own.joined)
    ascend(actor, critic1, critic2, obs, z, temperature, low, high, own)
    descend(actor, rules)

    excess = total(own.log_prob) / np.float32(count) + np.float32(target_entropy[0])
    alpha.loss[0] = -alpha.params[0] * excess
    alpha.grad[0] = -excess
    descend(alpha, rules)
    follow_target(critic1, rules)
    follow_target(critic2, rules)


@fast_apart
def learn(source, batch, rules, target_entropy, actor, critic1, critic2, alpha, own):
    for s in range(rules.stop[1], batch.td.shape[0]):
        sample_batch(source, batch, s)
        step(s, batch, rules, target_entropy, actor, critic1, critic2, alpha, own)
        update_priorities(source, batch, s)
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_sac", infer, learn)


def _arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    size, act, inputs = kernel.dim("batch"), kernel.dim("act"), kernel.layers("critic1")[0]
    shapes = ((size, inputs), *[(size, act)] * 5, *[(size,)] * 3, (0,))
    return (
        *critics.learn_arguments(kernel, buffers),
        buffers["hyper.target_entropy"],
        *(
            critics.net_of(name, kernel, buffers)
            for name in ("actor", "critic1", "critic2", "alpha")
        ),
        SacScratch._make(np.zeros(shape, np.float32) for shape in shapes),
    )


def noise(outputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return scratch of `draw_actions` for an actor's outputs (N, 2·A)."""
    return np.zeros((outputs.shape[0], outputs.shape[1] // 2), np.float32)


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.sac: act.action ← samples from policy.actor."""
    layers, envs = kernel.layers(), kernel.dim("envs")
    acts, _ = scratch(layers, envs)
    names = (
        "rng.inference", "env.obs", "policy.actor", "explore", "act.low", "act.high", "act.action"
    )  # fmt: skip
    return bind_call(
        infer,
        *(buffers[name] for name in names),
        np.array(layers, np.int64),
        acts,
        np.zeros((envs, kernel.dim("act")), np.float32),
    )


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.sac: `steps` times sample, update, and (prioritised) priorities, in one call; or
    update.sac: `steps` gradient steps on batch.*. The mean |TD error| of both critics goes to
    batch.td."""
    return bind_call(learn, *_arguments(kernel, buffers))


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.sac: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
