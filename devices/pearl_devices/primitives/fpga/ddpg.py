"""DDPG's gradient steps in the arithmetic of the simulated FPGA.

`primitives.updates.ddpg` has the host's gradient steps.
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
from pearl_devices.primitives.fpga.tanh import tanh_table
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.updates.critics import batch_of, net_of, rules_of
from pearl_devices.primitives.updates.stop_word import call_ends


@fast
def curve(z, table):
    """Return tanh(z) from the table of `rtl/squash.v`: linear in each of 512 intervals of 1/64."""
    size = flush(abs(z))
    at = min(np.int64(size * np.float32(64.0)), table.shape[0] - 1) if size < 8.0 else 511
    past = flush(size - table[at, 0])
    bent = flush(flush(table[at, 1] * past) + table[at, 2])
    return -bent if z < np.float32(0.0) else bent


@fast
def squash(z, low, high, table, bent, joined):
    """Last columns of joined ← actions of the outputs z (rows, A); bent ← tanh(z)."""
    actions = z.shape[1]
    start = joined.shape[1] - actions
    for b in range(z.shape[0]):
        for c in range(actions):
            half = np.float32(0.5) * (high[c] - low[c])
            middle = flush(low[c] + half)
            bent[b, c] = curve(z[b, c], table)
            joined[b, start + c] = flush(flush(flush(half) * bent[b, c]) + middle)


@fast_apart
def step(
    obs, action, reward, next_obs, discount, weight, td, actor, critic, rules, array, inv_rows,
    table, joined, ahead, bent, tail, d_out, d_action, transposed, sums,
):  # fmt: skip
    """Take one gradient step of the critic on one batch, then one of the actor."""
    samples, inputs, actions = obs.shape[0], obs.shape[1], action.shape[1]
    low, high = rules.low, rules.high
    for b in range(samples):
        for c in range(inputs):
            joined[b, c] = flush(obs[b, c])
            ahead[b, c] = flush(next_obs[b, c])
        for c in range(actions):
            joined[b, inputs + c] = flush(action[b, c])
    rules.count[0] += 1
    z = actor.acts[hidden(actor.layers, samples) :].reshape(samples, actions)
    q = critic.acts[hidden(critic.layers, samples) :].reshape(samples, 1)
    forward(actor.target, actor.layers, ahead, actor.acts, samples, samples)
    squash(z, low, high, table, bent, ahead)
    forward(critic.target, critic.layers, ahead, critic.acts, samples, samples)
    for b in range(samples):
        td[b] = target_value(q[b, 0], reward[b], discount[b])
    forward(critic.params, critic.layers, joined, critic.acts, samples, samples)
    delta, share, total = np.float32(rules.huber[0]), np.float32(inv_rows), np.float64(0.0)
    for b in range(samples):
        td[b], d_out[b, 0], part = td_terms(q[b, 0], td[b], weight[b], share, delta)
        total += part
    critic.loss[0] = total
    backward(critic, joined, samples, d_out, d_out[:, :0], transposed)
    optimise(critic, rules, array, sums)

    forward(actor.params, actor.layers, joined, actor.acts, samples, samples)
    squash(z, low, high, table, bent, joined)
    forward(critic.params, critic.layers, joined, critic.acts, samples, samples)
    total = np.float64(0.0)
    for b in range(samples):
        total += q[b, 0]
        d_out[b, 0] = -share
    actor.loss[0] = -total / samples
    backward(critic, joined, samples, d_out, tail, transposed)
    for b in range(samples):
        for c in range(actions):
            half = flush(np.float32(0.5) * (high[c] - low[c]))
            rest = flush(np.float32(1.0) - flush(bent[b, c] * bent[b, c]))
            d_action[b, c] = flush(tail[b, c] * flush(half * rest))
    backward(actor, joined, samples, d_action, d_action[:, :0], transposed)
    optimise(actor, rules, array, sums)


@fast_apart
def update(
    batch, rules, actor, critic, array, inv_rows, table, joined, ahead, bent, tail, d_out,
    d_action, transposed, sums,
):  # fmt: skip
    flush_net(actor)
    flush_net(critic)
    for s in range(rules.stop[1], batch.td.shape[0]):
        step(
            batch.obs[s], batch.action[s], batch.reward[s], batch.next_obs[s], batch.discount[s],
            batch.weight[s], batch.td[s], actor, critic, rules, array, inv_rows, table, joined,
            ahead, bent, tail, d_out, d_action, transposed, sums,
        )  # fmt: skip
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


def bind_update(kernel: Kernel, buffers: Buffers, array: int) -> Call:
    """Bind update.ddpg on an engine of array × array elements."""
    samples, act = kernel.dim("batch"), kernel.dim("act")
    actor, critic = net_of("actor", kernel, buffers), net_of("critic", kernel, buffers)
    inputs = kernel.layers("critic")[0]
    widest = max(*kernel.layers("actor"), *kernel.layers("critic"))
    return bind_call(
        update, batch_of(buffers), rules_of(buffers), actor, critic, array, 1.0 / samples,
        np.array(tanh_table(), np.float32),
        *(np.zeros((samples, n), np.float32) for n in (inputs, inputs, act, act, 1, act)),
        np.zeros(widest**2, np.float32), np.zeros(array, np.float32),
    )  # fmt: skip
