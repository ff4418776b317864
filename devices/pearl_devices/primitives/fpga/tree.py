"""The replay of the simulated FPGA: an integer sum tree (`pearl_devices/fpga/rtl/tree.v`).

A priority is a whole number of 20 bits, in units of 1/4096, at least 1; sums are exact. The host
computes powers of priorities and of weights, and moves the rows; the FPGA draws and sums.
`replay.tree` stores the numbers as float32, with exact leaves and rounded sums, so any other
implementation can continue a run. A process keeps one copy of the exact sums per tree, and
recomputes the copy if another implementation changed the array.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart
from pearl_devices.primitives.replay import ring

UNIT = 4096
"""Units in a priority of 1."""
MOST = (1 << 20) - 1
"""Largest priority: 20 bits."""

_WHOLE: WeakValueDictionary[tuple[int, int], npt.NDArray[np.int64]] = WeakValueDictionary()
"""Address and size of a tree → its exact sums, stored as long as a bound kernel uses them."""


def _whole_of(tree: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    key = tree.ctypes.data, tree.size
    found = _WHOLE.get(key)
    if found is None:
        found = np.full(tree.size, -1, np.int64)  # no tree's sums: the first use sets them
        _WHOLE[key] = found
    return found


@fast
def quantise(priority):
    """Return a priority as an integer of at least 1: a row of priority 0 would never be drawn."""
    return min(max(np.int64(np.float64(priority) * UNIT + 0.5), 1), MOST)


@fast
def single(number):
    return np.float32(np.float64(number) / UNIT)


@fast_apart
def refresh(tree, whole, levels, fanout):
    """whole ← the exact sums of the tree, unless `whole` has them."""
    if single(whole[0]) == tree[0]:
        return
    at = tree.size - levels[levels.size - 1]
    for leaf in range(at, tree.size):
        whole[leaf] = quantise(tree[leaf]) if tree[leaf] > np.float32(0.0) else 0
        tree[leaf] = single(whole[leaf])
    below = at
    for level in range(levels.size - 2, -1, -1):
        above, end = below - levels[level], below + levels[level + 1]
        for node in range(levels[level]):
            total = np.int64(0)
            for child in range(below + node * fanout, min(below + (node + 1) * fanout, end)):
                total += whole[child]
            whole[above + node] = total
            tree[above + node] = single(total)
        below = above


@fast
def set_leaf(tree, whole, levels, fanout, leaf, number):
    """Set the leaf, and the sums of all nodes above it."""
    start = tree.size - levels[levels.size - 1]
    more, node = number - whole[start + leaf], leaf
    for level in range(levels.size - 1, -1, -1):
        whole[start + node] += more
        tree[start + node] = single(whole[start + node])
        if level > 0:
            start -= levels[level - 1]
            node //= fanout


@fast
def find_leaf(whole, levels, fanout, prefix):
    """Return the leaf whose part of the total contains `prefix`.

    Each level takes the first child above 0 whose running sum exceeds the remaining prefix, else
    the last child above 0.
    """
    node, start, rest = np.int64(0), np.int64(0), prefix
    for level in range(1, levels.size):
        start += levels[level - 1]
        first, running, chosen, before = start + node * fanout, np.int64(0), 0, np.int64(0)
        for j in range(fanout):
            share = whole[first + j]
            if share > 0:
                chosen, before = j, running
                running += share
                if rest < running:
                    break
        rest -= before
        node = node * fanout + chosen
    return node


@fast
def prefix_of(fraction, total):
    """Return ⌊fraction · total / 2³²⌋, for fraction below 2³² and total below 2⁴⁶."""
    return ((fraction >> 16) * total + (((fraction & 0xFFFF) * total) >> 16)) >> 16


@fast_apart
def draw(rng, tree, whole, levels, fanout, beta, index, weight):
    """Draw one batch of rows and their weights, like `ring.draw`, with one firing of the random
    stream."""
    base, rows = stream_base(rng[0], rng[1]), index.size
    leaves = tree.size - levels[levels.size - 1]
    least = np.float32(np.inf)
    for b in range(rows):
        share = (b + uniform(base, b)) / rows
        fraction = min(np.int64(share * 4294967296.0), 4294967295)
        index[b] = find_leaf(whole, levels, fanout, prefix_of(fraction, whole[0]))
        weight[b] = tree[leaves + index[b]]
        least = min(least, weight[b])
    done = np.float64(rng[1])
    way = min(done / beta[2], 1.0) if beta[2] > 0.0 else 1.0
    exponent = np.float32(beta[0] + (beta[1] - beta[0]) * way)
    for b in range(rows):
        weight[b] = (least / weight[b]) ** exponent if weight[b] > least else np.float32(1.0)
    rng[1] += np.uint64(1)


@fast_apart
def sample_steps(
    rng, obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout, beta,
    envs, n_step, unit, discount, index, weight, b_obs, b_action, b_reward, b_next, b_discount,
    whole,
):  # fmt: skip
    refresh(tree, whole, levels, fanout)
    for s in range(index.shape[0]):
        draw(rng, tree, whole, levels, fanout, beta, index[s], weight[s])
        ring.gather(
            obs, action, reward, next_obs, terminated, truncated, cursor, envs, n_step, unit,
            discount[0], index[s], b_obs[s], b_action[s], b_reward[s], b_next[s], b_discount[s],
        )  # fmt: skip


@fast_apart
def insert(
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated,
    obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout, priority,
    none, whole,
):  # fmt: skip
    refresh(tree, whole, levels, fanout)
    row = cursor[0]
    ring.insert(
        s_obs, s_action, s_reward, s_next, s_terminated, s_truncated,
        obs, action, reward, next_obs, terminated, truncated, cursor, none, levels, fanout,
        priority,
    )  # fmt: skip
    if priority[2] <= 0.0:
        priority[2] = 1.0
    top = quantise(priority[2])
    for e in range(s_obs.shape[0]):
        set_leaf(tree, whole, levels, fanout, row + e, top)


@fast_apart
def priority_steps(tree, levels, fanout, priority, index, td, whole):
    refresh(tree, whole, levels, fanout)
    alpha, constant = np.float32(priority[0]), np.float32(priority[1])
    for s in range(index.shape[0]):
        for b in range(index.shape[1]):
            number = quantise((abs(td[s, b]) + constant) ** alpha)
            set_leaf(tree, whole, levels, fanout, index[s, b], number)
            priority[2] = max(priority[2], np.float64(number) / UNIT)


def bind(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind the insertion, the draws or the priorities of a prioritised replay of transitions."""
    structure, tree = kind_of(kernel).structure, buffers["replay.tree"]
    whole = _whole_of(tree)
    if structure == "prioritise":
        levels = np.array(tree_levels(kernel.dim("capacity"), kernel.dim("fanout")), np.int64)
        names = ("replay.priority", "batch.index", "batch.td")
        arrays: list[Any] = [buffers[name] for name in names]
        return bind_call(priority_steps, tree, levels, kernel.dim("fanout"), *arrays, whole)
    ring.check_ring(kernel)
    if structure == "sample":
        return bind_call(sample_steps, *ring.sample_arguments(kernel, buffers), whole)
    return bind_call(
        insert,
        *ring.rows(buffers, "step", ring.ROW),
        *ring.rows(buffers, "replay", ring.ROW),
        buffers["replay.cursor"],
        *ring.tree_arguments(kernel, buffers),
        buffers["replay.priority"],
        np.zeros(0, np.float32),
        whole,
    )
