"""DQN's gradient steps in the arithmetic of the simulated FPGA.

`primitives.updates.dqn` has the host's gradient steps.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.fpga.passes import (
    backward,
    flush,
    flush_net,
    forward,
    hidden,
    optimise,
    target_value,
    td_terms,
)
from pearl_devices.primitives.native import bind_call, fast_apart
from pearl_devices.primitives.updates.critics import batch_of, net_of, rules_of
from pearl_devices.primitives.updates.dqn import argmax
from pearl_devices.primitives.updates.stop_word import call_ends


@fast_apart
def step(
    obs, action, reward, next_obs, discount, weight, td, net, rules, double, array, inv_rows, both,
    acts_target, d_out, transposed, sums,
):  # fmt: skip
    """Take one gradient step on one batch.

    both (2·rows, obs): observations, then next observations; subnormal numbers are 0.
    """
    samples, inputs, outputs = obs.shape[0], obs.shape[1], net.layers[net.layers.size - 1]
    for b in range(samples):
        for c in range(inputs):
            both[b, c] = flush(obs[b, c])
            both[samples + b, c] = flush(next_obs[b, c])
    passed = 2 * samples if double else samples
    forward(net.target, net.layers, both[samples:], acts_target, samples, samples)
    forward(net.params, net.layers, both, net.acts, passed, passed)
    ahead = acts_target[hidden(net.layers, samples) :].reshape(samples, outputs)
    q = net.acts[hidden(net.layers, passed) :].reshape(passed, outputs)
    delta, share, total = np.float32(rules.huber[0]), np.float32(inv_rows), np.float64(0.0)
    for b in range(samples):
        best = argmax(q[samples + b]) if double else argmax(ahead[b])
        y = target_value(ahead[b, best], reward[b], discount[b])
        for c in range(outputs):
            d_out[b, c] = np.float32(0.0)
        value = q[b, action[b, 0]]
        td[b], d_out[b, action[b, 0]], part = td_terms(value, y, weight[b], share, delta)
        total += part
    net.loss[0] = total
    backward(net, both, passed, d_out, d_out[:, :0], transposed)
    rules.count[0] += 1
    optimise(net, rules, array, sums)


@fast_apart
def update(
    batch, rules, net, double, array, inv_rows, both, acts_target, d_out, transposed, sums
):  # fmt: skip
    flush_net(net)
    for s in range(rules.stop[1], batch.td.shape[0]):
        step(
            batch.obs[s], batch.action[s], batch.reward[s], batch.next_obs[s], batch.discount[s],
            batch.weight[s], batch.td[s], net, rules, double, array, inv_rows, both, acts_target,
            d_out, transposed, sums,
        )  # fmt: skip
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


def bind_update(kernel: Kernel, buffers: Buffers, array: int) -> Call:
    """Bind update.dqn on an engine of array × array elements."""
    layers, batch, double = kernel.layers(), kernel.dim("batch"), bool(kernel.dim("double"))
    acts = np.zeros((2 if double else 1) * batch * sum(layers[1:]), np.float32)
    return bind_call(
        update, batch_of(buffers), rules_of(buffers),
        net_of("q", kernel, buffers)._replace(acts=acts), double, array, 1.0 / batch,
        np.zeros((2 * batch, layers[0]), np.float32),
        np.zeros(batch * sum(layers[1:]), np.float32),
        np.zeros((batch, layers[-1]), np.float32),
        np.zeros(max(layers) ** 2, np.float32),
        np.zeros(array, np.float32),
    )  # fmt: skip
