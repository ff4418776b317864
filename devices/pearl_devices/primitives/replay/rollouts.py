"""The rollout of on-policy algorithms: storing vector steps, and generalised advantages. Native.

rollout.* holds T vector steps of N environments, time first. The advantages (Schulman et al. 2016):

    delta_t = reward_t + gamma · V(next_t) − V(obs_t),  A_t = delta_t + gamma · lambda · A_{t+1}

A_{t+1} is 0 where an episode ends. V(next_t) is 0 after a termination. After a truncation, or at
the end of the rollout, it is the value of the true successor, not of the observation after a reset.
Returns of n rewards (Mnih et al. 2016), cut at the end of an episode or of the rollout, are

    R_t = reward_t + … + gamma^(n−1) · reward_{t+n−1} + gamma^n · V(obs_{t+n})

and A_t = R_t − V(obs_t). They need only vector steps t … t + n, so only these are stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.rollouts import judged_steps
from pearl_devices.primitives.math.nets import forward, scratch
from pearl_devices.primitives.native import bind_call, fast, fast_apart, pick_by_bytes
from pearl_devices.primitives.replay.observations import unit_of, unpack

BLOCK = 128
"""Approximate rows of a pass for values, so that their activations stay in the caches."""


class VectorStep(NamedTuple):
    """The results of a vector step: step.*, and the policy's numbers about its action."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    log_prob: Any


class Rollout(NamedTuple):
    """rollout.*: the same arrays with a leading time axis, and advantages (T, N)."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    log_prob: Any
    at: Any
    value: Any
    advantage: Any
    returns: Any


@fast
def put(source, target):
    """target ← source, element by element (numba takes seconds to compile slice assignments)."""
    a, b = source.reshape(source.size), target.reshape(target.size)
    for j in range(a.size):
        b[j] = a[j]


@fast
def insert(step, rollout):
    """Store one vector step; after the last step of a rollout comes the first."""
    t = rollout.at[0]
    put(step.obs, rollout.obs[t])
    put(step.next_obs, rollout.next_obs[t])
    put(step.action, rollout.action[t])
    for n in range(step.reward.size):
        rollout.reward[t, n] = step.reward[n]
        rollout.terminated[t, n] = step.terminated[n]
        rollout.truncated[t, n] = step.truncated[n]
        rollout.log_prob[t, n] = step.log_prob[n]
    rollout.at[0] = (t + 1) % rollout.reward.shape[0]


class Seen(NamedTuple):
    """How stored uint8 become observations: their unit, and scratch (rows of a pass, O)."""

    unit: Any
    obs: Any


@fast
def estimate_floats(flat_obs, params, layers, curved, value, acts, seen):
    """value (flat) ← values of flat_obs (rows, O), in blocks that fit `acts`."""
    width = 0
    for layer in range(1, layers.size):
        width += layers[layer]
    rows, block = value.size, acts.size // width
    for first in range(0, rows, block):
        last = min(first + block, rows)
        out = forward(params, layers, flat_obs[first:last], acts, curved)
        for r in range(last - first):
            value[first + r] = out[r, 0]


@fast
def estimate_bytes(flat_obs, params, layers, curved, value, acts, seen):
    """The same for observations that are stored as uint8."""
    rows, block = value.size, seen.obs.shape[0]
    for first in range(0, rows, block):
        last = min(first + block, rows)
        obs = seen.obs[: last - first]
        unpack(flat_obs[first:last], seen.unit, obs)
        out = forward(params, layers, obs, acts, curved)
        for r in range(last - first):
            value[first + r] = out[r, 0]


estimate_values = pick_by_bytes(estimate_bytes, estimate_floats)


@fast_apart
def advantages(rollout, params, layers, curved, gamma, trace, acts, seen, ahead, carry):
    """Compute values, advantages and returns of a whole rollout. ahead, carry (N): scratch."""
    steps, envs = rollout.reward.shape
    width = rollout.obs.shape[2]
    flat = rollout.obs.reshape(steps * envs, width)
    value = rollout.value.reshape(steps * envs)
    estimate_values(flat, params, layers, curved, value, acts, seen)
    discount = np.float32(gamma[0])
    decay = np.float32(gamma[0] * trace[0])
    for n in range(envs):
        carry[n] = np.float32(0.0)
    for t in range(steps - 1, -1, -1):
        terminated, truncated = rollout.terminated[t], rollout.truncated[t]
        asked = t == steps - 1
        for n in range(envs):
            asked = asked or (truncated[n] > 0 and terminated[n] == 0)
        if asked:
            estimate_values(rollout.next_obs[t], params, layers, curved, ahead, acts, seen)
        for n in range(envs):
            after = np.float32(0.0)
            if terminated[n] == 0:
                bootstraps = truncated[n] > 0 or t == steps - 1
                after = ahead[n] if bootstraps else rollout.value[t + 1, n]
            delta = rollout.reward[t, n] + discount * after - rollout.value[t, n]
            over = terminated[n] > 0 or truncated[n] > 0
            carry[n] = delta + (np.float32(0.0) if over else decay * carry[n])
            rollout.advantage[t, n] = carry[n]
            rollout.returns[t, n] = carry[n] + rollout.value[t, n]


@fast_apart
def n_step_returns(
    rollout, follows, at, calls, horizon, ahead, params, layers, curved, gamma, acts, seen
):
    """Compute values, advantages and returns of the next `calls` of `horizon` vector steps.

    follows (rows, N): values of the true successors of cut steps. at: the next vector step to
    value, and its row. ahead: rewards of a return.
    """
    rows, envs, discount = rollout.reward.shape[0], rollout.reward.shape[1], np.float32(gamma[0])
    for _ in range(calls):
        t, row = at[0], at[1]
        last, end = min(t + ahead, horizon - 1), min(t + ahead, horizon) - 1
        for k in range(t + ahead if t > 0 else 0, last + 1):  # not valued before
            r = (row + k - t) % rows
            estimate_values(rollout.obs[r], params, layers, curved, rollout.value[r], acts, seen)
            asked = k == horizon - 1
            for n in range(envs):
                asked = asked or (rollout.truncated[r, n] > 0 and rollout.terminated[r, n] == 0)
            if asked:
                after = follows[r]
                estimate_values(rollout.next_obs[r], params, layers, curved, after, acts, seen)
        into = t % rollout.returns.shape[0]
        for n in range(envs):
            beyond = rollout.value if last > end else follows
            total = beyond[(row + last - t) % rows, n]
            for k in range(end, t - 1, -1):
                r = (row + k - t) % rows
                if rollout.terminated[r, n] > 0:
                    total = np.float32(0.0)
                elif rollout.truncated[r, n] > 0:
                    total = follows[r, n]
                total = rollout.reward[r, n] + discount * total
            rollout.returns[into, n] = total
            rollout.advantage[into, n] = total - rollout.value[row, n]
        at[0], at[1] = (t + 1) % horizon, (row + 1) % rows


def step_of(buffers: Buffers) -> VectorStep:
    """Return the `VectorStep` of a rollout_insert; continuous actions as sampled, before
    clipping."""
    columns = [buffers[f"step.{name}"] for name in VectorStep._fields[:6]]
    columns[1] = buffers.get("act.sample", columns[1])
    return VectorStep._make((*columns, buffers["act.log_prob"]))


def rollout_of(buffers: Buffers) -> Rollout:
    """Return rollout.*; for a kernel that only stores, the last fields are empty."""
    none = np.zeros((0, 0), np.float32)
    results = (buffers.get(f"rollout.{n}", none) for n in ("value", "advantage", "returns"))
    rows = (buffers[f"rollout.{name}"] for name in VectorStep._fields)
    return Rollout._make((*rows, buffers["rollout.at"], *results))


def advantage_arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    """Return the arguments of `advantages`."""
    layers, envs = kernel.layers("critic"), kernel.dim("envs")
    block = max(envs, min(BLOCK, envs * kernel.dim("horizon")))
    packed = block if kernel.dims.get("units") else 0
    return (
        rollout_of(buffers),
        buffers["policy.critic"],
        np.array(layers, np.int64),
        bool(kernel.dim("tanh")),
        buffers["hyper.discount"],
        buffers["hyper.gae_lambda"],
        scratch(layers, block)[0],
        Seen(unit_of(kernel), np.zeros((packed, kernel.dim("obs")), np.float32)),
        np.zeros(envs, np.float32),
        np.zeros(envs, np.float32),
    )


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind rollout_insert: rollout.* at rollout.at ← step.*, act.log_prob (and act.sample)."""
    return bind_call(insert, step_of(buffers), rollout_of(buffers))


def bind_advantages(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind gae: rollout.value, advantage and returns ← a whole rollout, or with `kept` its next
    vector step, and policy.critic."""
    given = advantage_arguments(kernel, buffers)
    if not kernel.dims.get("ahead"):
        return bind_call(advantages, *given)
    rollout, params, layers, curved, gamma, _, acts, seen, *_ = given
    sizes = (judged_steps(kernel), kernel.dim("horizon"), kernel.dim("ahead"))
    into = buffers["rollout.follows"], buffers["rollout.judged"]
    judging = (params, layers, curved, gamma, acts, seen)
    return bind_call(n_step_returns, rollout, *into, *sizes, *judging)
