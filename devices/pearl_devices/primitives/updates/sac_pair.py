"""SAC's gradient step on two cores. Each side moves one critic on the whole batch and takes the
actor's gradient through it; each does half of the batch of the actor's own work."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.nets import backward, forward, total
from pearl_devices.primitives.math.rng import normals, stream_base
from pearl_devices.primitives.math.two_core import (
    barrier,
    bind_pair,
    descend_together,
    leave_number,
    nets,
    split_items,
    sum_of_numbers,
    wait_for_work,
)
from pearl_devices.primitives.native import fast, fast_counted
from pearl_devices.primitives.updates import critics
from pearl_devices.primitives.updates.critics import (
    critic_step,
    descend,
    follow_target,
    join,
    sample_batch,
    update_priorities,
)
from pearl_devices.primitives.updates.sac import HIGHEST, LOWEST, sample
from pearl_devices.primitives.updates.stop_word import call_ends
from pearl_devices.primitives.updates.td3_pair import add_errors, target_values


class SacPairScratch(NamedTuple):
    """Arrays of one side: joined (B, O + A), noise, squashed, action (B, A each), wanted, parts (B
    each), none (0)."""

    joined: Any
    noise: Any
    squashed: Any
    action: Any
    wanted: Any
    parts: Any
    none: Any


class SacShared(NamedTuple):
    """Arrays of both sides: ahead, now (B, O + A each); log_prob_ahead, log_prob (B each); values,
    td (2, B), one row per critic; slopes (2, B, A), the derivative of each critic's value by the
    action."""

    ahead: Any
    now: Any
    log_prob_ahead: Any
    log_prob: Any
    values: Any
    td: Any
    slopes: Any


@fast_counted
def choose(team, start, actor, obs, out, log_prob, rules, own):
    """Sample actions for this side's rows, with the normals from number `start` on. Join them to
    `out`, write log densities to log_prob, and return the actor's outputs."""
    count, a = own.noise.shape
    first, end = split_items(count, team.side, 2)
    rows = end - first
    normals(
        stream_base(rules.rng[0], rules.rng[1]), start + first * a,
        own.noise[first:end].reshape(rows * a),
    )  # fmt: skip
    z = forward(actor.params, actor.layers, obs[first:end], actor.acts, False)
    sample(
        z, own.noise[first:end], rules.low, rules.high, own.squashed[first:end],
        own.action[first:end], log_prob[first:end],
    )  # fmt: skip
    join(obs[first:end], own.action[first:end], out[first:end])
    return z


@fast
def step(team, s, batch, rules, target_entropy, actor, critic, alpha, other_actor, shared, own):
    """Take one side of gradient step number s of a firing. critic: this side's."""
    count, a = own.noise.shape
    first, end = split_items(count, team.side, 2)
    rows, share = end - first, np.float32(1.0) / np.float32(count)
    low, high, obs = rules.low, rules.high, batch.obs[s]
    temperature = np.float32(math.exp(alpha.params[0]))

    choose(team, 0, actor, batch.next_obs[s], shared.ahead, shared.log_prob_ahead, rules, own)
    barrier(team)
    target_values(team, s, batch, critic, shared, own)
    for b in range(count):
        value = own.wanted[b] - temperature * shared.log_prob_ahead[b]
        own.wanted[b] = batch.reward[s, b] + batch.discount[s, b] * value
    critic_step(
        critic, own.joined, own.wanted, batch.weight[s], shared.td[team.side], own.parts, rules
    )

    size = count * a
    z = choose(team, size + size % 2, actor, obs, shared.now, shared.log_prob, rules, own)
    barrier(team)
    add_errors(team, s, batch, shared)
    value = forward(critic.params, critic.layers, shared.now, critic.acts, False)
    for b in range(count):
        shared.values[team.side, b] = value[b, 0]
    barrier(team)
    if team.side == 0:
        rules.rng[1] += np.uint64(1)
    for b in range(count):
        mine, its = shared.values[team.side, b], shared.values[1 - team.side, b]
        least = mine < its or (mine == its and team.side == 0)
        critic.deltas[b] = -share if least else np.float32(0.0)
    backward(
        critic.params, critic.layers, shared.now, critic.acts, count, count, critic.deltas,
        own.none, a, shared.slopes[team.side], False,
    )  # fmt: skip
    for b in range(rows):
        at = first + b
        least = min(shared.values[0, at], shared.values[1, at])
        own.parts[b] = share * (temperature * shared.log_prob[at] - least)
    leave_number(team, np.float64(total(own.parts[:rows])))
    barrier(team)
    d = actor.deltas[: rows * 2 * a].reshape(rows, 2 * a)
    for b in range(rows):
        at = first + b
        for c in range(a):
            t, raw = own.squashed[at, c], z[b, a + c]
            half = np.float32(0.5) * (high[c] - low[c])
            slope = shared.slopes[0, at, c] + shared.slopes[1, at, c]
            slope *= half * (np.float32(1.0) - t * t)
            slope += share * temperature * np.float32(2.0) * t
            d[b, c] = slope
            d[b, a + c] = np.float32(0.0)
            if raw >= LOWEST and raw <= HIGHEST:
                spread = np.float32(math.exp(raw)) * own.noise[at, c]
                d[b, a + c] = slope * spread - share * temperature
    backward(
        actor.params, actor.layers, obs[first:end], actor.acts, rows, rows, actor.deltas,
        actor.grad, np.int64(0), d, False,
    )  # fmt: skip
    descend_together(team, actor, other_actor, rules)
    if team.side == 0:
        actor.loss[0] = sum_of_numbers(team)
        excess = total(shared.log_prob) / np.float32(count) + np.float32(target_entropy[0])
        alpha.loss[0] = -alpha.params[0] * excess
        alpha.grad[0] = -excess
        descend(alpha, rules)
    follow_target(critic, rules)
    barrier(team)


@fast
def learn(
    team, source, batch, rules, target_entropy, actor, critic, alpha, other_actor, shared, own
):  # fmt: skip
    while True:
        if team.side == 0:
            sample_batch(source, batch, rules.stop[1])
            rules.count[0] += 1
        if not wait_for_work(team):
            return
        s = rules.stop[1]
        step(
            team, s, batch, rules, target_entropy, actor, critic, alpha, other_actor, shared,
            own,
        )  # fmt: skip
        if team.side == 0:
            update_priorities(source, batch, s)
            if call_ends(rules.stop, s + 1, batch.td.shape[0]):
                return


def bind_learn(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind learn.sac and update.sac as `sac` does, on two cores."""
    size, act, inputs = kernel.dim("batch"), kernel.dim("act"), kernel.layers("critic1")[0]
    wide, rows, both = (size, inputs), (size,), (2, size)
    shapes = (wide, *[(size, act)] * 3, rows, rows, (0,))
    between = SacShared._make(
        np.zeros(n, np.float32) for n in (wide, wide, rows, rows, both, both, (2, size, act))
    )
    head = (
        *critics.learn_arguments(kernel, buffers),
        buffers["hyper.target_entropy"],
    )  # fmt: skip
    mine = nets(("actor", "critic1", "alpha"), kernel, buffers)
    theirs = nets(("actor", "critic2", "alpha"), kernel, buffers)
    own, others = (SacPairScratch._make(np.zeros(n, np.float32) for n in shapes) for _ in range(2))
    return bind_pair(
        learn,
        ((*head, *mine, theirs[0], between, own), (*head, *theirs, mine[0], between, others)),
    )
