"""Replay: a ring of transitions, uniform or prioritised sampling, n-step returns.

Prioritised sampling: Schaul et al. 2016 (proportional, stratified), from the sum tree of `tree`.
Actions are read as (rows, components) whatever their type. These functions are compiled without
reordering, so fused and separate calls agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.replay.observations import unit_of
from pearl_devices.primitives.replay.sum_tree import find_strata, raise_leaves, raise_range


@fast
def append_rows(n, capacity, cursor, tree, levels, fanout, priority):
    """Count n rows at the cursor as stored, with the largest priority so far."""
    row = cursor[0]
    if tree.size > 0:
        if priority[2] <= 0.0:
            priority[2] = 1.0
        top = np.float32(priority[2])
        first = tree.size - levels[levels.size - 1] + row
        for e in range(n):
            tree[first + e] = top
        raise_range(tree, levels, fanout, row, row + n - 1)
    cursor[0] = (row + n) % capacity
    cursor[1] = min(cursor[1] + n, capacity)


@fast_apart
def insert(
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated,
    obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout, priority,
):  # fmt: skip
    n, row = s_obs.shape[0], cursor[0]
    for e in range(n):
        for c in range(s_obs.shape[1]):
            obs[row + e, c] = s_obs[e, c]
            next_obs[row + e, c] = s_next[e, c]
        for c in range(s_action.shape[1]):
            action[row + e, c] = s_action[e, c]
        reward[row + e] = s_reward[e]
        terminated[row + e] = s_terminated[e]
        truncated[row + e] = s_truncated[e]
    append_rows(n, reward.size, cursor, tree, levels, fanout, priority)


@fast_apart
def draw(rng, cursor, tree, levels, fanout, beta, index, weight):
    """Draw one batch of rows and their weights; uses one firing of the random stream.

    Prioritised: one row from each of B equal parts of the total; weights (size · p / total)^−beta
    over their largest, that is (p / least p)^−beta. Uniform: with replacement, weights 1.
    """
    base = stream_base(rng[0], rng[1])
    rows = index.size
    if tree.size == 0:
        filled = max(cursor[1], 1)
        for b in range(rows):
            index[b] = np.int64(uniform(base, b) * filled)
            weight[b] = np.float32(1.0)
    else:
        find_strata(tree, levels, fanout, base, index)
        leaves = tree.size - levels[levels.size - 1]
        least = np.float32(np.inf)
        for b in range(rows):
            weight[b] = tree[leaves + index[b]]
            least = min(least, weight[b])
        done = np.float64(rng[1])
        share = min(done / beta[2], 1.0) if beta[2] > 0.0 else 1.0
        exponent = np.float32(beta[0] + (beta[1] - beta[0]) * share)
        for b in range(rows):
            weight[b] = (least / weight[b]) ** exponent if weight[b] > least else np.float32(1.0)
    rng[1] += np.uint64(1)


@fast
def n_step_return(reward, terminated, truncated, cursor, envs, n_step, gamma, row):
    """Return (bootstrap row, n-step return, discount) of `row`; see `gather`."""
    total, factor = np.float64(reward[row]), gamma
    for _ in range(n_step - 1):
        if terminated[row] != 0 or truncated[row] != 0:
            break
        after = (row + envs) % reward.size
        newest = (cursor[0] - 1 - row) % reward.size < envs  # the newest row of its environment
        if newest or truncated[after] & ANEW:
            break
        row = after
        total += factor * reward[row]
        factor *= gamma
    return row, total, factor if terminated[row] == 0 else 0.0


@fast_apart
def gather(
    obs, action, reward, next_obs, terminated, truncated, cursor, envs, n_step, unit, gamma,
    index, b_obs, b_action, b_reward, b_next, b_discount,
):  # fmt: skip
    """Copy the rows `index` with their n-step returns. unit: of stored observations; 1 for float32.

    The same environment continues row i at i + envs, i + 2·envs, …. The sum stops at an episode's
    end, after n_step rewards, at the newest row, or before a row whose environment was restarted.
    It bootstraps from the row where it stopped, with discount 0 only if the episode terminated.
    """
    for b in range(index.size):
        row = index[b]
        for c in range(obs.shape[1]):
            b_obs[b, c] = np.float32(obs[row, c]) * unit
        for c in range(action.shape[1]):
            b_action[b, c] = action[row, c]
        row, b_reward[b], b_discount[b] = n_step_return(
            reward, terminated, truncated, cursor, envs, n_step, gamma, row
        )
        for c in range(next_obs.shape[1]):
            b_next[b, c] = np.float32(next_obs[row, c]) * unit


@fast_apart
def set_priorities(tree, levels, fanout, priority, index, td):
    """Leaf ← (|td| + constant)^alpha; for a row drawn twice, the last value counts."""
    leaves = tree.size - levels[levels.size - 1]
    alpha, constant = np.float32(priority[0]), np.float32(priority[1])
    top = np.float32(priority[2])
    for b in range(index.size):
        value = (abs(td[b]) + constant) ** alpha
        tree[leaves + index[b]] = value
        top = max(top, value)
    priority[2] = top
    raise_leaves(tree, levels, fanout, index)


@fast_apart
def sample_steps(
    rng, obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout, beta,
    envs, n_step, unit, discount, index, weight, b_obs, b_action, b_reward, b_next, b_discount,
):  # fmt: skip
    for s in range(index.shape[0]):
        draw(rng, cursor, tree, levels, fanout, beta, index[s], weight[s])
        gather(
            obs, action, reward, next_obs, terminated, truncated, cursor, envs, n_step, unit,
            discount[0], index[s], b_obs[s], b_action[s], b_reward[s], b_next[s], b_discount[s],
        )  # fmt: skip


@fast
def priority_steps(tree, levels, fanout, priority, index, td):
    for s in range(index.shape[0]):
        set_priorities(tree, levels, fanout, priority, index[s], td[s])


Columns = tuple[Any, ...]


def rows(buffers: Buffers, prefix: str, names: str, lead: int = 1) -> Columns:
    """Return the arrays `prefix.name` of `names`; actions with a component axis, whatever their
    type."""
    columns = []
    for name in names.split():
        column = buffers[f"{prefix}.{name}"]
        if name == "action" and column.ndim == lead:
            column = column.reshape(*column.shape, 1)
        columns.append(column)
    return tuple(columns)


ROW = "obs action reward next_obs terminated truncated"
BATCH = "obs action reward next_obs discount"


def tree_arguments(kernel: Kernel, buffers: Buffers) -> Columns:
    """Return (tree, widths of its levels, fanout); empty arrays if the replay is uniform."""
    if not kernel.dim("prioritised"):
        return np.zeros(0, np.float32), np.zeros(0, np.int64), 0
    fanout = kernel.dim("fanout")
    levels = np.array(tree_levels(kernel.dim("capacity"), fanout), np.int64)
    return buffers["replay.tree"], levels, fanout


def sample_arguments(kernel: Kernel, buffers: Buffers) -> Columns:
    """Return the arguments of `sample_steps`, in order."""
    beta = buffers["replay.beta"] if kernel.dim("prioritised") else np.zeros(3)
    return (
        buffers["rng.replay_sample"],
        *rows(buffers, "replay", ROW),
        buffers["replay.cursor"],
        *tree_arguments(kernel, buffers),
        beta,
        kernel.dim("envs"),
        kernel.dim("n_step"),
        unit_of(kernel),
        buffers["hyper.discount"],
        buffers["batch.index"],
        buffers["batch.weight"],
        *rows(buffers, "batch", BATCH, lead=2),
    )


def insert_arguments(kernel: Kernel, buffers: Buffers) -> Columns:
    """Return the arguments of `insert`, in order."""
    check_ring(kernel)
    return (
        *rows(buffers, "step", ROW),
        *rows(buffers, "replay", ROW),
        buffers["replay.cursor"],
        *tree_arguments(kernel, buffers),
        buffers["replay.priority"] if kernel.dim("prioritised") else np.zeros(3),
    )


def check_ring(kernel: Kernel) -> None:
    capacity, envs = kernel.dim("capacity"), kernel.dim("envs")
    if capacity % envs or capacity < 2 * envs:
        raise ValueError(
            f"kernel {kernel.kind}: capacity {capacity} must be a multiple of envs {envs} and at "
            "least twice that; otherwise rows of one step would be split"
        )


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_insert: write step.* at the cursor, with the largest priority so far (first
    1)."""
    return bind_call(insert, *insert_arguments(kernel, buffers))


def bind_sample(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_sample: fill batch.* with `steps` batches.

    Each batch counts as one firing of rng.replay_sample, so any grouping gives the same rows.
    """
    check_ring(kernel)
    return bind_call(sample_steps, *sample_arguments(kernel, buffers))


def bind_priorities(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_update: set priorities of batch.index from batch.td, batch after batch."""
    fanout = kernel.dim("fanout")
    levels = np.array(tree_levels(kernel.dim("capacity"), fanout), np.int64)
    return bind_call(
        priority_steps,
        buffers["replay.tree"],
        levels,
        fanout,
        buffers["replay.priority"],
        buffers["batch.index"],
        buffers["batch.td"],
    )
