"""DDPG's gradient step on two cores; each takes half of the batch and half of the parameters.

Both sides do the work of `ddpg.step` on their rows. They meet at four barriers: after both
gradients of the critic, after its step, and the same for the actor.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import backward, forward, td_gradient, total
from pearl_devices.primitives.math.two_core import (
    barrier,
    bind_pair,
    descend_together,
    follow_together,
    leave_number,
    nets,
    split_items,
    sum_of_numbers,
    wait_for_work,
)
from pearl_devices.primitives.native import fast
from pearl_devices.primitives.updates import critics
from pearl_devices.primitives.updates.critics import join, sample_batch, update_priorities
from pearl_devices.primitives.updates.ddpg import DdpgScratch, squash, unsquash_gradient
from pearl_devices.primitives.updates.stop_word import call_ends


@fast
def ascend(team, actor, judge, other_actor, obs, joined, mine, none, count, rules):
    """One side's part of the actor's step towards actions with higher values by `judge`.

    mine: the actor's squashed outputs for this side's rows obs. joined: rows of both sides. count:
    number of rows of both sides."""
    rows, a = mine.shape
    value = forward(judge.params, judge.layers, joined, judge.acts, False)
    for b in range(rows):
        judge.deltas[b] = np.float32(-1.0) / np.float32(count)
    leave_number(team, np.float64(total(value.reshape(rows))))
    d = actor.deltas[: rows * a].reshape(rows, a)
    backward(
        judge.params, judge.layers, joined, judge.acts, rows, rows, judge.deltas, none, a, d, False
    )  # fmt: skip
    unsquash_gradient(mine, d, rules.low, rules.high)
    backward(
        actor.params, actor.layers, obs, actor.acts, rows, rows, actor.deltas, actor.grad,
        np.int64(0), d, False,
    )  # fmt: skip
    descend_together(team, actor, other_actor, rules)
    if team.side == 0:
        actor.loss[0] = -sum_of_numbers(team) / count


@fast
def step(team, s, batch, rules, actor, critic, other_actor, other_critic, own):
    """One side of gradient step number s of a firing."""
    count, a = batch.action.shape[1:]
    first, end = split_items(count, team.side, 2)
    rows = end - first
    obs, low, high = batch.obs[s, first:end], rules.low, rules.high
    joined, td = own.joined[:rows], batch.td[s, first:end]
    reward, discount = batch.reward[s, first:end], batch.discount[s, first:end]
    weight, delta = batch.weight[s, first:end], np.float32(rules.huber[0])
    next_obs = batch.next_obs[s, first:end]

    ahead = forward(actor.target, actor.layers, next_obs, actor.acts, False)
    squash(ahead, low, high)
    join(next_obs, ahead, joined)
    value = forward(critic.target, critic.layers, joined, critic.acts, False)
    for b in range(rows):
        own.wanted[b] = reward[b] + discount[b] * value[b, 0]
    join(obs, batch.action[s, first:end], joined)
    value = forward(critic.params, critic.layers, joined, critic.acts, False)
    for b in range(rows):
        error = value[b, 0] - own.wanted[b]
        td[b] = abs(error)
        own.parts[b], critic.deltas[b] = td_gradient(error, weight[b], count, delta)
    leave_number(team, np.float64(total(own.parts[:rows])))
    d = actor.deltas[: rows * a].reshape(rows, a)
    backward(
        critic.params, critic.layers, joined, critic.acts, rows, rows, critic.deltas, critic.grad,
        np.int64(0), d, False,
    )  # fmt: skip
    descend_together(team, critic, other_critic, rules)
    if team.side == 0:
        critic.loss[0] = sum_of_numbers(team)
    follow_together(team, critic, rules)
    mine = forward(actor.params, actor.layers, obs, actor.acts, False)
    squash(mine, low, high)
    join(obs, mine, joined)
    barrier(team)

    ascend(team, actor, critic, other_actor, obs, joined, mine, own.none, count, rules)
    follow_together(team, actor, rules)
    barrier(team)


@fast
def learn(team, source, batch, rules, actor, critic, other_actor, other_critic, own):
    while True:
        if team.side == 0:
            sample_batch(source, batch, rules.stop[1])
            rules.count[0] += 1
        if not wait_for_work(team):
            return
        s = rules.stop[1]
        step(team, s, batch, rules, actor, critic, other_actor, other_critic, own)
        if team.side == 0:
            update_priorities(source, batch, s)
            if call_ends(rules.stop, s + 1, batch.td.shape[0]):
                return


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.ddpg and update.ddpg as `ddpg` does, on two cores."""
    size, inputs = kernel.dim("batch"), kernel.layers("critic")[0]
    shared = critics.learn_arguments(kernel, buffers)
    mine, theirs = (nets(("actor", "critic"), kernel, buffers) for _ in range(2))
    shapes = ((size, inputs), (size,), (size,), (0,))
    own, others = (DdpgScratch._make(np.zeros(n, np.float32) for n in shapes) for _ in range(2))
    return bind_pair(learn, ((*shared, *mine, *theirs, own), (*shared, *theirs, *mine, others)))
