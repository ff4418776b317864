"""TD3's gradient step on two cores. Each side moves one critic on the whole batch, and computes
target actions and the actor's step for half of the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import forward
from pearl_devices.primitives.math.rng import normals, stream_base
from pearl_devices.primitives.math.two_core import (
    barrier,
    bind_pair,
    follow_together,
    nets,
    split_items,
    wait_for_work,
)
from pearl_devices.primitives.native import fast
from pearl_devices.primitives.updates import critics
from pearl_devices.primitives.updates.critics import (
    critic_step,
    follow_target,
    join,
    sample_batch,
    update_priorities,
)
from pearl_devices.primitives.updates.ddpg import squash
from pearl_devices.primitives.updates.ddpg_pair import ascend
from pearl_devices.primitives.updates.stop_word import call_ends
from pearl_devices.primitives.updates.td3 import Td3Scratch, smooth


class Td3Shared(NamedTuple):
    """Arrays of both sides: ahead (B, O + A); values, td (2, B), one row per critic."""

    ahead: Any
    values: Any
    td: Any


@fast
def target_values(team, s, batch, critic, shared, own):
    """own.wanted (B) ← the smaller of the two target critics' values of shared.ahead. Call
    `barrier` before; the sides meet once more here. Then own.joined holds the critics' inputs."""
    count = own.wanted.size
    value = forward(critic.target, critic.layers, shared.ahead, critic.acts, False)
    for b in range(count):
        shared.values[team.side, b] = value[b, 0]
        shared.td[team.side, b] = np.float32(0.0)
    join(batch.obs[s], batch.action[s], own.joined)
    barrier(team)
    for b in range(count):
        own.wanted[b] = min(shared.values[0, b], shared.values[1, b])


@fast
def add_errors(team, s, batch, shared):
    """batch.td ← the mean of both critics' errors. Call `barrier` before."""
    if team.side == 0:
        for b in range(batch.td.shape[1]):
            batch.td[s, b] = shared.td[0, b] + shared.td[1, b]


@fast
def step(
    team, s, batch, rules, smoothing, delay, actor, critic, judge, other_actor, shared, own
):  # fmt: skip
    """Take one side of gradient step number s of a firing. critic: this side's; judge: the first
    critic with this side's scratch."""
    count, a = own.noise.shape
    first, end = split_items(count, team.side, 2)
    rows = end - first
    low, high, obs, next_obs = rules.low, rules.high, batch.obs[s, first:end], batch.next_obs[s]
    noise = own.noise[first:end]
    base = stream_base(rules.rng[0], rules.rng[1])
    normals(base, first * a, noise.reshape(rows * a))

    ahead = forward(actor.target, actor.layers, next_obs[first:end], actor.acts, False)
    squash(ahead, low, high)
    smooth(ahead, noise, smoothing, low, high)
    join(next_obs[first:end], ahead, shared.ahead[first:end])
    barrier(team)
    if team.side == 0:
        rules.rng[1] += np.uint64(1)
    target_values(team, s, batch, critic, shared, own)
    for b in range(count):
        own.wanted[b] = batch.reward[s, b] + batch.discount[s, b] * own.wanted[b]
    critic_step(
        critic, own.joined, own.wanted, batch.weight[s], shared.td[team.side], own.parts, rules
    )
    late = rules.count[0] % delay == 0
    barrier(team)
    add_errors(team, s, batch, shared)

    if late:
        joined = own.joined[:rows]
        mine = forward(actor.params, actor.layers, obs, actor.acts, False)
        squash(mine, low, high)
        join(obs, mine, joined)
        ascend(team, actor, judge, other_actor, obs, joined, mine, own.none, count, rules)
    if rules.every[0] > 0 or late:
        follow_together(team, actor, rules)
        follow_target(critic, rules)
    barrier(team)


@fast
def learn(
    team, source, batch, rules, smoothing, delay, actor, critic, judge, other_actor, shared, own
):  # fmt: skip
    while True:
        if team.side == 0:
            sample_batch(source, batch, rules.stop[1])
            rules.count[0] += 1
        if not wait_for_work(team):
            return
        s = rules.stop[1]
        step(
            team, s, batch, rules, smoothing, delay, actor, critic, judge, other_actor, shared,
            own,
        )  # fmt: skip
        if team.side == 0:
            update_priorities(source, batch, s)
            if call_ends(rules.stop, s + 1, batch.td.shape[0]):
                return


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.td3 and update.td3 as `td3` does, on two cores."""
    size, act, inputs = kernel.dim("batch"), kernel.dim("act"), kernel.layers("critic1")[0]
    shapes = ((size, inputs), (size, act), (size,), (size,), (0,))
    between = Td3Shared(
        np.zeros((size, inputs), np.float32), *(np.zeros((2, size), np.float32) for _ in range(2))
    )
    head = (
        *critics.learn_arguments(kernel, buffers),
        buffers["hyper.smoothing"], kernel.dim("policy_delay"),
    )  # fmt: skip
    mine = nets(("actor", "critic1", "critic1"), kernel, buffers)
    theirs = nets(("actor", "critic2", "critic1"), kernel, buffers)
    own, others = (Td3Scratch._make(np.zeros(n, np.float32) for n in shapes) for _ in range(2))
    return bind_pair(
        learn,
        ((*head, *mine, theirs[0], between, own), (*head, *theirs, mine[0], between, others)),
    )
