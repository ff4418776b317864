"""Gradient steps of PPO and A2C, one vector step of the rollout after another. Native.

One gradient step over a whole rollout goes along the mean of the gradients of its vector steps. So
each firing adds one up, as soon as the vector step is judged, and the last takes the step.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.counting import parameters
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.replay.observations import unit_of, unpack
from pearl_devices.primitives.updates import critics
from pearl_devices.primitives.updates.ppo import ONE, ZERO, Rows, gradients, rules_of
from pearl_devices.primitives.updates.ppo_descent import anneal, move


@fast
def add(net, share, summed):
    """Add `share` of the gradient to `summed`; the last element of `summed` is the loss."""
    for j in range(net.grad.size):
        summed[j] += share * net.grad[j]
    summed[net.grad.size] += share * net.loss[0]


@fast
def take(net, summed):
    """Move the accumulated gradient and loss to the results, and set the accumulators to 0."""
    for j in range(net.grad.size):
        net.grad[j] = summed[j]
        summed[j] = ZERO
    net.loss[0] = summed[net.grad.size]
    summed[net.grad.size] = ZERO


@fast_apart
def add_step(rollout, unit, obs, rules, actor, critic, size, curved, sums, at, horizon, parts):
    """Adds the gradient of one vector step; after the last of `horizon` takes the optimiser's step.

    rollout: with an axis of kept vector steps before that of environments. sums: of the actor and
    of the critic. at: the vector step, and its row. unit: of stored observations. obs: scratch.
    """
    row = at[1]
    unpack(rollout.obs[row], unit, obs)
    rows = Rows(
        obs, rollout.action[row], rollout.log_prob[row], rollout.value[row],
        rollout.advantage[0], rollout.returns[0],
    )  # fmt: skip
    gradients(rows, rules, actor, critic, size, curved, parts)
    share = ONE / np.float32(horizon)
    add(actor, share, sums[0])
    add(critic, share, sums[1])
    if at[0] == horizon - 1:
        take(actor, sums[0])
        take(critic, sums[1])
        done = np.float64(rules.count[0])
        move(rules, anneal(done, rules.anneal[0]), done, actor, critic)
    at[0], at[1] = (at[0] + 1) % horizon, (row + 1) % rollout.obs.shape[0]


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.ppo or update.a2c whose firings each learn from one vector step."""
    rollout = Rows._make(buffers[f"rollout.{name}"] for name in Rows._fields)
    return bind_call(
        add_step,
        rollout,
        unit_of(kernel),
        np.zeros(rollout.obs.shape[1:], np.float32),
        rules_of(buffers),
        critics.net_of("actor", kernel, buffers),
        critics.net_of("critic", kernel, buffers),
        parameters(kernel.layers("actor")),
        bool(kernel.dim("tanh")),
        tuple(buffers[f"learner.{name}.sum"] for name in ("actor", "critic")),
        buffers["learner.at"],
        kernel.dim("horizon"),
        np.zeros(kernel.dim("batch"), np.float32),
    )
