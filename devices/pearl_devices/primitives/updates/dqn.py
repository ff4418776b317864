"""DQN: inference, update, and the fused sample–update–priorities.

Mnih et al. 2015; double: van Hasselt et al. 2016; duelling: Wang et al. 2016. Native variants.

A duelling network has one output more than there are actions: the value V comes first, then the
advantages A, and Q = V + A - mean(A) (equation 9 of the paper). Its hidden layers are shared; in
the paper they split after the convolutions. The best action is that of the largest advantage.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import backward, forward, scratch, td_gradient, total
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.updates import critics, iterations
from pearl_devices.primitives.updates.critics import (
    descend,
    follow_target,
    sample_batch,
    update_priorities,
)
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


class DqnScratch(NamedTuple):
    """both: (2B, O) for double DQN, the observations of its stacked pass. acts_target: of the pass
    of the target. parts: (B). duelling: 0 or 1, the number of outputs before those of the actions.
    """

    both: Any
    acts_target: Any
    parts: Any
    double: bool
    duelling: Any


@fast_apart
def step(s, batch, rules, net, own):
    """Take gradient step number s of a firing."""
    obs, next_obs, td, weight = batch.obs[s], batch.next_obs[s], batch.td[s], batch.weight[s]
    action, reward, discount = batch.action[s], batch.reward[s], batch.discount[s]
    rows, inputs, outputs = obs.shape[0], obs.shape[1], net.layers[net.layers.size - 1]
    stored, duelling = rows, own.duelling
    if own.double:
        stored = 2 * rows
        for b in range(rows):
            for c in range(inputs):
                own.both[b, c] = obs[b, c]
                own.both[rows + b, c] = next_obs[b, c]
        q = forward(net.params, net.layers, own.both, net.acts, False)
    else:
        q = forward(net.params, net.layers, obs, net.acts, False)
    q_next = forward(net.target, net.layers, next_obs, own.acts_target, False)
    if duelling:
        add_value(q)
        add_value(q_next)
    q, q_next = q[:, duelling:], q_next[:, duelling:]
    d = net.deltas[: rows * outputs].reshape(rows, outputs)
    delta = np.float32(rules.huber[0])
    for b in range(rows):
        best = argmax(q[rows + b]) if own.double else argmax(q_next[b])
        error = q[b, action[b, 0]] - (reward[b] + discount[b] * q_next[b, best])
        td[b] = abs(error)
        own.parts[b], slope = td_gradient(error, weight[b], rows, delta)
        rest = -slope / np.float32(outputs - 1) if duelling else np.float32(0.0)
        for c in range(outputs):
            d[b, c] = rest
        d[b, duelling + action[b, 0]] += slope
        if duelling:
            d[b, 0] = slope
    net.loss[0] = total(own.parts)
    backward(
        net.params, net.layers, obs, net.acts, stored, rows, net.deltas, net.grad, np.int64(0), d,
        False,
    )  # fmt: skip
    rules.count[0] += 1
    descend(net, rules)
    follow_target(net, rules)


@fast_apart
def learn(source, batch, rules, net, own):
    for s in range(rules.stop[1], batch.td.shape[0]):
        sample_batch(source, batch, s)
        step(s, batch, rules, net, own)
        update_priorities(source, batch, s)
        if call_ends(rules.stop, s + 1, batch.td.shape[0]):
            return


iterate = iterations.compile_iterations("iterate_dqn", infer, learn)


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.dqn: act.action ← epsilon-greedy on policy.q."""
    layers = kernel.layers()
    acts, _ = scratch(layers, kernel.dim("envs"))
    names = ("rng.inference", "env.obs", "policy.q", "explore", "act.action")
    duelling = kernel.dims.get("duelling", 0)
    widths = np.array(layers, np.int64)
    return bind_call(infer, *(buffers[name] for name in names), widths, acts, duelling)


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.dqn: `steps` times sample, update, and (prioritised) priorities, in one call; or
    update.dqn: `steps` gradient steps on batch.*. Absolute TD errors go to batch.td."""
    batch, double = kernel.dim("batch"), bool(kernel.dim("double"))
    net = critics.net_of("q", kernel, buffers)
    layers, stored = kernel.layers("q"), 2 * batch if double else batch
    own = DqnScratch(
        np.zeros((stored, layers[0]), np.float32),
        net.acts,
        np.zeros(batch, np.float32),
        double,
        kernel.dims.get("duelling", 0),
    )
    net = net._replace(acts=scratch(layers, stored)[0])
    return bind_call(learn, *critics.learn_arguments(kernel, buffers), net, own)


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.dqn: whole iterations, see `iterations`."""
    return iterations.bind(iterate, kernel, buffers, bind_inference, bind_learn)
