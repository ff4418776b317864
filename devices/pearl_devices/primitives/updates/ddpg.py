"""DDPG (Lillicrap et al. 2016): inference, update, and the fused sample–update–priorities.
Native.

The actor's linear output z becomes the action middle + half · tanh(z) of act.low … act.high. The
critic's input is the observation followed by the action. A gradient step moves the critic first,
then the actor through the updated critic, then both targets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import (
    adam,
    backward,
    forward,
    rate,
    scratch,
    td_gradient,
    total,
    update_target,
)
from pearl_devices.primitives.math.rng import normal, stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.replay.ring import (
    BATCH,
    draw,
    gather,
    rows,
    sample_arguments,
    set_priorities,
)
from pearl_devices.primitives.updates import iterations
from pearl_devices.primitives.updates.critics import join
from pearl_devices.primitives.updates.stop_word import call_ends


@fast
def squash(z, low, high):
    """Outputs (rows, A) → actions between the bounds, in place."""
    for r in range(z.shape[0]):
        for c in range(z.shape[1]):
            half = np.float32(0.5) * (high[c] - low[c])
            z[r, c] = low[c] + half + half * math.tanh(z[r, c])


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


@fast_apart
def step(
    obs, action, reward, next_obs, discount, weight, td, count, adam_hyper, tau, every,
    clip_norm, huber, low, high,
    actor_layers, actor, actor_target, actor_m, actor_v, actor_steps, actor_lr, actor_loss,
    critic_layers, critic, critic_target, critic_m, critic_v, critic_steps, critic_lr, critic_loss,
    joined, actor_acts, actor_deltas, actor_grad, critic_acts, critic_deltas, critic_grad,
    target_value, parts, none,
):  # fmt: skip
    """One gradient step on one batch, of the critic and then of the actor."""
    rows, a = action.shape
    count[0] += 1
    next_action = forward(actor_target, actor_layers, next_obs, actor_acts, False)
    squash(next_action, low, high)
    join(next_obs, next_action, joined)
    value = forward(critic_target, critic_layers, joined, critic_acts, False)
    for b in range(rows):
        target_value[b] = reward[b] + discount[b] * value[b, 0]
    join(obs, action, joined)
    value = forward(critic, critic_layers, joined, critic_acts, False)
    delta = np.float32(huber[0])
    for b in range(rows):
        error = value[b, 0] - target_value[b]
        td[b] = abs(error)
        parts[b], critic_deltas[b] = td_gradient(error, weight[b], rows, delta)
    critic_loss[0] = total(parts)
    d = actor_deltas[: rows * a].reshape(rows, a)
    backward(
        critic,
        critic_layers,
        joined,
        critic_acts,
        rows,
        rows,
        critic_deltas,
        critic_grad,
        np.int64(0),
        d,
        False,
    )
    critic_steps[0] += 1
    adam(
        critic, critic_grad, critic_m, critic_v, critic_steps[0],
        rate(critic_lr, critic_steps[0] - 1), adam_hyper, clip_norm[0],
    )  # fmt: skip

    own = forward(actor, actor_layers, obs, actor_acts, False)
    squash(own, low, high)
    join(obs, own, joined)
    value = forward(critic, critic_layers, joined, critic_acts, False)
    for b in range(rows):
        critic_deltas[b] = np.float32(-1.0) / np.float32(rows)
    actor_loss[0] = -total(value.reshape(rows)) / np.float32(rows)
    backward(
        critic, critic_layers, joined, critic_acts, rows, rows, critic_deltas, none, a, d, False
    )
    unsquash_gradient(own, d, low, high)
    backward(
        actor,
        actor_layers,
        obs,
        actor_acts,
        rows,
        rows,
        actor_deltas,
        actor_grad,
        np.int64(0),
        d,
        False,
    )
    actor_steps[0] += 1
    adam(
        actor, actor_grad, actor_m, actor_v, actor_steps[0],
        rate(actor_lr, actor_steps[0] - 1), adam_hyper, clip_norm[0],
    )  # fmt: skip
    update_target(critic_target, critic, count[0], tau[0], every[0])
    update_target(actor_target, actor, count[0], tau[0], every[0])


@fast
def update(
    stop, obs, action, reward, next_obs, discount, weight, td, count, adam_hyper, tau, every,
    clip_norm, huber, low, high,
    actor_layers, actor, actor_target, actor_m, actor_v, actor_steps, actor_lr, actor_loss,
    critic_layers, critic, critic_target, critic_m, critic_v, critic_steps, critic_lr, critic_loss,
    joined, actor_acts, actor_deltas, actor_grad, critic_acts, critic_deltas, critic_grad,
    target_value, parts, none,
):  # fmt: skip
    for s in range(stop[1], td.shape[0]):
        step(
            obs[s], action[s], reward[s], next_obs[s], discount[s], weight[s], td[s], count,
            adam_hyper, tau, every, clip_norm, huber, low, high,
            actor_layers, actor, actor_target, actor_m, actor_v, actor_steps, actor_lr, actor_loss,
            critic_layers, critic, critic_target, critic_m, critic_v, critic_steps, critic_lr,
            critic_loss, joined, actor_acts, actor_deltas, actor_grad, critic_acts, critic_deltas,
            critic_grad, target_value, parts, none,
        )  # fmt: skip
        if call_ends(stop, s + 1, td.shape[0]):
            return


@fast_apart
def learn(
    stop, rng, r_obs, r_action, r_reward, r_next, r_terminated, r_truncated, cursor, tree, levels,
    fanout, beta, envs, n_step, gamma, index, weight,
    obs, action, reward, next_obs, discount, priority, td, count, adam_hyper, tau, every,
    clip_norm, huber, low, high,
    actor_layers, actor, actor_target, actor_m, actor_v, actor_steps, actor_lr, actor_loss,
    critic_layers, critic, critic_target, critic_m, critic_v, critic_steps, critic_lr, critic_loss,
    joined, actor_acts, actor_deltas, actor_grad, critic_acts, critic_deltas, critic_grad,
    target_value, parts, none,
):  # fmt: skip
    for s in range(stop[1], td.shape[0]):
        draw(rng, cursor, tree, levels, fanout, beta, index[s], weight[s])
        gather(
            r_obs, r_action, r_reward, r_next, r_terminated, r_truncated, cursor, envs, n_step,
            gamma[0], index[s], obs[s], action[s], reward[s], next_obs[s], discount[s],
        )  # fmt: skip
        step(
            obs[s], action[s], reward[s], next_obs[s], discount[s], weight[s], td[s], count,
            adam_hyper, tau, every, clip_norm, huber, low, high,
            actor_layers, actor, actor_target, actor_m, actor_v, actor_steps, actor_lr, actor_loss,
            critic_layers, critic, critic_target, critic_m, critic_v, critic_steps, critic_lr,
            critic_loss, joined, actor_acts, actor_deltas, actor_grad, critic_acts, critic_deltas,
            critic_grad, target_value, parts, none,
        )  # fmt: skip
        if tree.size > 0:
            set_priorities(tree, levels, fanout, priority, index[s], td[s])
        if call_ends(stop, s + 1, td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_ddpg", infer, learn)


def _network_arguments(name: str, layers: tuple[int, ...], buffers: Buffers) -> tuple[Any, ...]:
    arrays = [buffers[f"learner.{name}{part}"] for part in ("", ".target", ".m", ".v", ".steps")]
    return (
        np.array(layers, np.int64), *arrays, buffers[f"hyper.lr.{name}"], buffers[f"loss.{name}"]
    )  # fmt: skip


def _learner_arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    actor, critic, batch = kernel.layers("actor"), kernel.layers("critic"), kernel.dim("batch")
    names = (
        "batch.td", "learner.step", "hyper.adam", "hyper.tau", "hyper.target_every",
        "hyper.clip_norm", "hyper.huber", "act.low", "act.high",
    )  # fmt: skip
    return (
        *(buffers[name] for name in names),
        *_network_arguments("actor", actor, buffers),
        *_network_arguments("critic", critic, buffers),
        np.zeros((batch, critic[0]), np.float32),
        *scratch(actor, batch),
        np.zeros_like(buffers["learner.actor"]),
        *scratch(critic, batch),
        np.zeros_like(buffers["learner.critic"]),
        np.zeros(batch, np.float32),
        np.zeros(batch, np.float32),
        np.zeros(0, np.float32),
    )


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.ddpg: act.action ← policy.actor with Gaussian noise, within the bounds."""
    layers = kernel.layers()
    acts, _ = scratch(layers, kernel.dim("envs"))
    names = (
        "rng.inference", "env.obs", "policy.actor", "explore", "act.low", "act.high", "act.action"
    )  # fmt: skip
    return bind_call(infer, *(buffers[name] for name in names), np.array(layers, np.int64), acts)


def bind_update(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.ddpg: `steps` gradient steps on batch.*, absolute TD errors to batch.td."""
    return bind_call(
        update,
        buffers["loop.stop"],
        *rows(buffers, "batch", BATCH, lead=2),
        buffers["batch.weight"],
        *_learner_arguments(kernel, buffers),
    )


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.ddpg: `steps` times sample, update, and (prioritised) priorities, in one call."""
    prioritised = kernel.dim("prioritised")
    return bind_call(
        learn,
        buffers["loop.stop"],
        *sample_arguments(kernel, buffers),
        buffers["replay.priority"] if prioritised else np.zeros(3),
        *_learner_arguments(kernel, buffers),
    )


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.ddpg: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
