"""DQN: inference, update, and the fused sample–update–priorities.

Mnih et al. 2015; double: van Hasselt et al. 2016; duelling: Wang et al. 2016. Native variants.

A duelling network has one output more than there are actions: the value V comes first, then the
advantages A, and Q = V + A - mean(A) (equation 9 of the paper). Its hidden layers are shared; in
the paper they split after the convolutions. The best action is that of the largest advantage.
"""

from __future__ import annotations

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
from pearl_devices.primitives.math.rng import stream_base, uniform
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
from pearl_devices.primitives.updates.stop_word import call_ends


@fast
def argmax(values):
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best]:
            best = j
    return best


@fast
def epsilon(explore, steps):
    """Share of random actions after `steps` env steps: linear from first to last."""
    if steps < explore[3]:
        return 1.0
    share = min(steps / explore[2], 1.0) if explore[2] > 0.0 else 1.0
    return explore[0] + (explore[1] - explore[0]) * share


@fast
def choose(rng, q, explore, action):
    """Epsilon-greedy actions from q (N, A); uses one firing of the stream, two numbers per row."""
    base = stream_base(rng[0], rng[1])
    share = epsilon(explore, np.float64(rng[1]) * q.shape[0])
    for n in range(q.shape[0]):
        if uniform(base, 2 * n) < share:
            action[n] = np.int64(uniform(base, 2 * n + 1) * q.shape[1])
        else:
            action[n] = argmax(q[n])
    rng[1] += np.uint64(1)


@fast_apart
def infer(rng, obs, params, explore, action, layers, acts, duelling):
    choose(rng, forward(params, layers, obs, acts, False)[:, duelling:], explore, action)


@fast
def add_value(out):
    """Value and advantages (rows, 1 + A) → values of the actions in columns 1 … A, in place."""
    share = np.float32(1.0) / np.float32(out.shape[1] - 1)
    for r in range(out.shape[0]):
        mean = np.float32(0.0)
        for c in range(1, out.shape[1]):
            mean += share * out[r, c]
        for c in range(1, out.shape[1]):
            out[r, c] += out[r, 0] - mean


@fast_apart
def step(
    obs, action, reward, next_obs, discount, weight, td, layers, double, duelling,
    params, target, m, v, steps, count, lr, adam_hyper, tau, every, clip_norm, huber, loss,
    both, acts, acts_target, deltas, grad, parts,
):  # fmt: skip
    """Take one gradient step on one batch. both (2·rows, obs): scratch of double DQN's stacked
    pass.

    duelling: 0 or 1, the number of outputs before those of the actions.
    """
    rows, inputs, outputs = obs.shape[0], obs.shape[1], layers[layers.size - 1]
    stored = rows
    if double:
        stored = 2 * rows
        for b in range(rows):
            for c in range(inputs):
                both[b, c] = obs[b, c]
                both[rows + b, c] = next_obs[b, c]
        q = forward(params, layers, both, acts, False)
    else:
        q = forward(params, layers, obs, acts, False)
    q_next = forward(target, layers, next_obs, acts_target, False)
    if duelling:
        add_value(q)
        add_value(q_next)
    q, q_next = q[:, duelling:], q_next[:, duelling:]
    d = deltas[: rows * outputs].reshape(rows, outputs)
    delta = np.float32(huber[0])
    for b in range(rows):
        best = argmax(q[rows + b]) if double else argmax(q_next[b])
        error = q[b, action[b, 0]] - (reward[b] + discount[b] * q_next[b, best])
        td[b] = abs(error)
        parts[b], slope = td_gradient(error, weight[b], rows, delta)
        rest = -slope / np.float32(outputs - 1) if duelling else np.float32(0.0)
        for c in range(outputs):
            d[b, c] = rest
        d[b, duelling + action[b, 0]] += slope
        if duelling:
            d[b, 0] = slope
    loss[0] = total(parts)
    backward(params, layers, obs, acts, stored, rows, deltas, grad, np.int64(0), d, False)
    count[0] += 1
    steps[0] += 1
    adam(params, grad, m, v, steps[0], rate(lr, steps[0] - 1), adam_hyper, clip_norm[0])
    update_target(target, params, count[0], tau[0], every[0])


@fast
def update(
    stop, obs, action, reward, next_obs, discount, weight, td, layers, double, duelling,
    params, target, m, v, steps, count, lr, adam_hyper, tau, every, clip_norm, huber, loss,
    both, acts, acts_target, deltas, grad, parts,
):  # fmt: skip
    for s in range(stop[1], td.shape[0]):
        step(
            obs[s], action[s], reward[s], next_obs[s], discount[s], weight[s], td[s], layers,
            double, duelling, params, target, m, v, steps, count, lr, adam_hyper, tau, every,
            clip_norm, huber, loss, both, acts, acts_target, deltas, grad, parts,
        )  # fmt: skip
        if call_ends(stop, s + 1, td.shape[0]):
            return


@fast_apart
def learn(
    stop, rng, r_obs, r_action, r_reward, r_next, r_terminated, r_truncated, cursor, tree, levels,
    fanout, beta, envs, n_step, unit, gamma, index, weight,
    obs, action, reward, next_obs, discount, priority, td, layers, double, duelling,
    params, target, m, v, steps, count, lr, adam_hyper, tau, every, clip_norm, huber, loss,
    both, acts, acts_target, deltas, grad, parts,
):  # fmt: skip
    for s in range(stop[1], td.shape[0]):
        draw(rng, cursor, tree, levels, fanout, beta, index[s], weight[s])
        gather(
            r_obs, r_action, r_reward, r_next, r_terminated, r_truncated, cursor, envs, n_step,
            unit, gamma[0], index[s], obs[s], action[s], reward[s], next_obs[s], discount[s],
        )  # fmt: skip
        step(
            obs[s], action[s], reward[s], next_obs[s], discount[s], weight[s], td[s], layers,
            double, duelling, params, target, m, v, steps, count, lr, adam_hyper, tau, every,
            clip_norm, huber, loss, both, acts, acts_target, deltas, grad, parts,
        )  # fmt: skip
        if tree.size > 0:
            set_priorities(tree, levels, fanout, priority, index[s], td[s])
        if call_ends(stop, s + 1, td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_dqn", infer, learn)


def _learner_arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    layers, batch, double = kernel.layers(), kernel.dim("batch"), bool(kernel.dim("double"))
    params = buffers["learner.q"]
    stored = 2 * batch if double else batch
    acts, _ = scratch(layers, stored)
    acts_target, deltas = scratch(layers, batch)
    names = (
        "learner.q", "learner.q.target", "learner.q.m", "learner.q.v", "learner.q.steps",
        "learner.step", "hyper.lr.q", "hyper.adam", "hyper.tau", "hyper.target_every",
        "hyper.clip_norm", "hyper.huber", "loss.q",
    )  # fmt: skip
    return (
        buffers["batch.td"],
        np.array(layers, np.int64),
        double,
        kernel.dims.get("duelling", 0),
        *(buffers[name] for name in names),
        np.zeros((stored, layers[0]), np.float32),
        acts,
        acts_target,
        deltas,
        np.zeros_like(params),
        np.zeros(batch, np.float32),
    )


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.dqn: act.action ← epsilon-greedy on policy.q."""
    layers = kernel.layers()
    acts, _ = scratch(layers, kernel.dim("envs"))
    names = ("rng.inference", "env.obs", "policy.q", "explore", "act.action")
    duelling = kernel.dims.get("duelling", 0)
    widths = np.array(layers, np.int64)
    return bind_call(infer, *(buffers[name] for name in names), widths, acts, duelling)


def bind_update(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.dqn: `steps` gradient steps on batch.*, absolute TD errors to batch.td."""
    return bind_call(
        update,
        buffers["loop.stop"],
        *rows(buffers, "batch", BATCH, lead=2),
        buffers["batch.weight"],
        *_learner_arguments(kernel, buffers),
    )


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.dqn: `steps` times sample, update, and (prioritised) priorities, in one call."""
    prioritised = kernel.dim("prioritised")
    return bind_call(
        learn,
        buffers["loop.stop"],
        *sample_arguments(kernel, buffers),
        buffers["replay.priority"] if prioritised else np.zeros(3),
        *_learner_arguments(kernel, buffers),
    )


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.dqn: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
