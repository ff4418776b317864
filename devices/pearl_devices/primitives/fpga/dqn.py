"""DQN's gradient steps in the arithmetic of the simulated FPGA.

`primitives.updates.dqn` has the host's gradient steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.fpga.passes import (
    adam,
    backward,
    clip_factor,
    flush,
    flush_all,
    forward,
    hidden,
    loss_part,
    target_mode,
    td_slope,
)
from pearl_devices.primitives.math.nets import rate
from pearl_devices.primitives.native import bind_call, exact_apart
from pearl_devices.primitives.replay.ring import BATCH, rows
from pearl_devices.primitives.updates.dqn import argmax
from pearl_devices.primitives.updates.stop_word import call_ends


@exact_apart
def step(
    obs, action, reward, next_obs, discount, weight, td, layers, double, array, inv_rows,
    params, target, m, v, steps, count, lr, adam_hyper, tau, every, clip_norm, huber, loss,
    both, acts, acts_target, d_out, deltas, grad, transposed, sums,
):  # fmt: skip
    """Take one gradient step on one batch.

    both (2·rows, obs): observations, then next observations; subnormal numbers are 0.
    """
    samples, inputs, outputs = obs.shape[0], obs.shape[1], layers[layers.size - 1]
    for b in range(samples):
        for c in range(inputs):
            both[b, c] = flush(obs[b, c])
            both[samples + b, c] = flush(next_obs[b, c])
    passed = 2 * samples if double else samples
    forward(target, layers, both[samples:], acts_target, samples, samples)
    forward(params, layers, both, acts, passed, passed)
    ahead = acts_target[hidden(layers, samples) :].reshape(samples, outputs)
    q = acts[hidden(layers, passed) :].reshape(passed, outputs)
    delta = np.float32(huber[0])
    share = np.float32(inv_rows)
    total = np.float64(0.0)
    for b in range(samples):
        best = argmax(q[samples + b]) if double else argmax(ahead[b])
        y = flush(flush(flush(discount[b]) * ahead[b, best]) + flush(reward[b]))
        error = flush(q[b, action[b, 0]] - y)
        td[b] = abs(error)
        total += loss_part(td[b], weight[b], share, delta)
        for c in range(outputs):
            d_out[b, c] = np.float32(0.0)
        d_out[b, action[b, 0]] = td_slope(error, flush(weight[b]), share, delta)
    loss[0] = total
    none = d_out[:, :0]
    backward(params, layers, both, acts, passed, d_out, deltas, grad, none, transposed)
    count[0] += 1
    steps[0] += 1
    scale = clip_factor(grad, layers, array, sums, clip_norm[0])
    adam(
        params, target, grad, m, v, steps[0], rate(lr, steps[0] - 1), adam_hyper, scale,
        target_mode(count[0], every[0]), np.float32(tau[0]),
    )  # fmt: skip


@exact_apart
def update(
    stop, obs, action, reward, next_obs, discount, weight, td, layers, double, array, inv_rows,
    params, target, m, v, steps, count, lr, adam_hyper, tau, every, clip_norm, huber, loss,
    both, acts, acts_target, d_out, deltas, grad, transposed, sums,
):  # fmt: skip
    flush_all(params)
    flush_all(target)
    flush_all(m)
    flush_all(v)
    for s in range(stop[1], td.shape[0]):
        step(
            obs[s], action[s], reward[s], next_obs[s], discount[s], weight[s], td[s], layers,
            double, array, inv_rows, params, target, m, v, steps, count, lr, adam_hyper, tau,
            every, clip_norm, huber, loss, both, acts, acts_target, d_out, deltas, grad,
            transposed, sums,
        )  # fmt: skip
        if call_ends(stop, s + 1, td.shape[0]):
            return


def learner_arguments(kernel: Kernel, buffers: Buffers, array: int) -> tuple[Any, ...]:
    """Return the arguments of `step` after the batch."""
    layers, batch, double = kernel.layers(), kernel.dim("batch"), bool(kernel.dim("double"))
    names = (
        "learner.q", "learner.q.target", "learner.q.m", "learner.q.v", "learner.q.steps",
        "learner.step", "hyper.lr.q", "hyper.adam", "hyper.tau", "hyper.target_every",
        "hyper.clip_norm", "hyper.huber", "loss.q",
    )  # fmt: skip
    passed = 2 * batch if double else batch
    return (
        np.array(layers, np.int64), double, array, 1.0 / batch,
        *(buffers[name] for name in names),
        np.zeros((2 * batch, layers[0]), np.float32),
        np.zeros(passed * sum(layers[1:]), np.float32),
        np.zeros(batch * sum(layers[1:]), np.float32),
        np.zeros((batch, layers[-1]), np.float32),
        np.zeros(2 * batch * max(layers), np.float32),
        np.zeros_like(buffers["learner.q"]),
        np.zeros(max(layers) ** 2, np.float32),
        np.zeros(array, np.float32),
    )  # fmt: skip


def bind_update(kernel: Kernel, buffers: Buffers, array: int) -> Call:
    """Bind update.dqn on an engine of array × array elements."""
    return bind_call(
        update,
        buffers["loop.stop"],
        *rows(buffers, "batch", BATCH, lead=2),
        buffers["batch.weight"],
        buffers["batch.td"],
        *learner_arguments(kernel, buffers, array),
    )
