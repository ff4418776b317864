"""Tabular Q-learning (Watkins 1989) and SARSA (Rummery and Niranjan 1994), native.

The table policy.q (states, actions) is float64; an observation is a state number. The greedy action
is drawn evenly from the actions of largest value, so a table of equal values explores. Step sizes
fall with the updates of an entry (Even-Dar and Mansour 2003).
"""

from __future__ import annotations

import math

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast
from pearl_devices.primitives.updates.dqn import epsilon


@fast
def greedy(values, share):
    """An action of the largest value; share, in [0, 1), decides ties."""
    best, ties = values[0], 1
    for a in range(1, values.size):
        if values[a] > best:
            best, ties = values[a], 1
        elif values[a] == best:
            ties += 1
    left = np.int64(share * ties)
    for a in range(values.size):
        if values[a] == best:
            if left == 0:
                return a
            left -= 1
    return 0  # all values are NaN, which equals nothing


@fast
def draw_action(values, share_random, base, n):
    """Draw an epsilon-greedy action from one row, with numbers 2n and 2n + 1 of the stream."""
    if uniform(base, 2 * n) < share_random:
        return np.int64(uniform(base, 2 * n + 1) * values.size)
    return greedy(values, uniform(base, 2 * n + 1))


@fast
def choose(rng, obs, table, explore, action):
    base = stream_base(rng[0], rng[1])
    share = epsilon(explore, np.float64(rng[1]) * action.size)
    for n in range(action.size):
        action[n] = draw_action(table[np.int64(obs[n, 0])], share, base, n)
    rng[1] += np.uint64(1)


@fast
def correct(table, visits, state, action, target, rate, td, n):
    """Move one entry towards its target."""
    visits[state, action] += 1
    error = target - table[state, action]
    table[state, action] += rate[0] / math.pow(visits[state, action], rate[1]) * error
    td[n] = abs(error)


@fast
def finish(td, count, loss):
    total = 0.0
    for n in range(td.size):
        total += td[n] * td[n]
    loss[0] = 0.5 * total / td.size
    count[0] += 1


@fast
def q_learning(
    obs, action, reward, next_obs, terminated, table, visits, rate, gamma, td, count, loss
):
    """Target: reward + gamma · max Q(next_obs); only the reward if the episode terminated."""
    for n in range(td.size):
        target = np.float64(reward[n])
        if not terminated[n]:
            values = table[np.int64(next_obs[n, 0])]
            target += gamma[0] * values[greedy(values, 0.0)]
        correct(table, visits, np.int64(obs[n, 0]), action[n], target, rate, td, n)
    finish(td, count, loss)


@fast
def sarsa(
    rng, steps, explore, chosen, obs, action, reward, next_obs, terminated, truncated, table,
    visits, rate, gamma, td, count, loss,
):  # fmt: skip
    """Return reward + gamma · Q(next_obs, next action); only the reward if the episode terminated.
    The next action is the one `chosen` for env.obs. If the episode was truncated, that action
    belongs to the next episode, and another is drawn from the policy."""
    base = stream_base(rng[0], rng[1])
    rng[1] += np.uint64(1)
    if steps[1] == 0:  # no transition yet
        return
    share = epsilon(explore, np.float64(steps[1]) * td.size)
    for n in range(td.size):
        target = np.float64(reward[n])
        if not terminated[n]:
            values = table[np.int64(next_obs[n, 0])]
            ahead = draw_action(values, share, base, n) if truncated[n] else chosen[n]
            target += gamma[0] * values[ahead]
        correct(table, visits, np.int64(obs[n, 0]), action[n], target, rate, td, n)
    finish(td, count, loss)


TABLE = (
    *("policy.q", "learner.q.visits", "hyper.lr.q", "hyper.discount"),
    *("batch.td", "learner.step", "loss.q"),
)


def bind_choose(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind tabular.choose: act.action ← epsilon-greedy on policy.q."""
    names = ("rng.inference", "env.obs", "policy.q", "explore", "act.action")
    return bind_call(choose, *(buffers[name] for name in names))


def bind_q_learning(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind tabular.q_learning: move policy.q by the transitions in step.*, one after another."""
    step = ("obs", "action", "reward", "next_obs", "terminated")
    return bind_call(
        q_learning, *(buffers[f"step.{n}"] for n in step), *(buffers[n] for n in TABLE)
    )


def bind_sarsa(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind tabular.sarsa: the same, with act.action as next actions; does nothing before any
    step."""
    step = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    names = ("rng.update", "rng.env_step", "explore", "act.action")
    return bind_call(
        sarsa,
        *(buffers[n] for n in (*names, *(f"step.{n}" for n in step), *TABLE)),
    )
