"""Tabular Q-learning and SARSA from a log of transitions, chunk by chunk, native.

Chunk c is the c-th of equal parts of the log and has the table learner.tables[c]. In float32 each
operation is rounded separately, in the order target = reward + discount · ahead, difference =
target − entry, entry + rate · difference. In int32, the table, the rewards, the rate and the
discount are multiplied by 2^bits; products have 64 bits and are rounded to nearest by a shift.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast

STRIDE = 16
"""Rows between two visits of order STR (assumed)."""


@fast
def visited(order, base, first, size, i):
    """The row of a chunk of `size` rows from `first` that its i-th update visits.

    order: 0 SEQ: i. 1 STR: 0, STRIDE, 2 · STRIDE, …, then 1, 1 + STRIDE, …, each row once.
    2 RAN: drawn evenly, with replacement, with number first + i of the stream.
    """
    if order == 1:
        short, longer = size // STRIDE, size % STRIDE
        if i < longer * (short + 1):
            return first + i // (short + 1) + STRIDE * (i % (short + 1))
        i -= longer * (short + 1)
        return first + longer + i // short + STRIDE * (i % short)
    if order == 2:
        return first + np.int64(uniform(base, first + i) * size)
    return first + i


@fast
def ahead(values, on_policy, action):
    """The value that bootstraps: of the logged next action, or the largest."""
    if on_policy:
        return values[action]
    best = values[0]
    for a in range(1, values.size):
        best = max(best, values[a])
    return best


@fast
def sweep_fp32(on_policy, bits, order, rng, log, tables, rate, discount, count, loss):
    alpha, gamma = np.float32(rate[0]), np.float32(discount[0])
    state, action, reward, next_state, next_action, terminated = log
    base, squares, size = stream_base(rng[0], rng[1]), 0.0, state.size // tables.shape[0]
    for c in range(tables.shape[0]):
        table = tables[c]
        for i in range(size):
            k = visited(order, base, c * size, size, i)
            target = reward[k]
            if not terminated[k]:
                target += gamma * ahead(table[next_state[k]], on_policy, next_action[k])
            error = target - table[state[k], action[k]]
            table[state[k], action[k]] += alpha * error
            squares += np.float64(error) * np.float64(error)
    loss[0] = 0.5 * squares / state.size
    rng[1] += np.uint64(1)
    count[0] += 1


@fast
def sweep_int32(on_policy, bits, order, rng, log, tables, rate, discount, count, loss):
    one, half = np.int64(1) << bits, np.int64(1) << (bits - 1)
    alpha, gamma = np.int64(np.rint(rate[0] * one)), np.int64(np.rint(discount[0] * one))
    state, action, reward, next_state, next_action, terminated = log
    base, squares, size = stream_base(rng[0], rng[1]), 0.0, state.size // tables.shape[0]
    for c in range(tables.shape[0]):
        table = tables[c]
        for i in range(size):
            k = visited(order, base, c * size, size, i)
            target = np.int64(reward[k])
            if not terminated[k]:
                value = np.int64(ahead(table[next_state[k]], on_policy, next_action[k]))
                target += (gamma * value + half) >> bits
            error = target - np.int64(table[state[k], action[k]])
            table[state[k], action[k]] += np.int32((alpha * error + half) >> bits)
            squares += np.float64(error) * np.float64(error)
    loss[0] = 0.5 * squares / state.size / np.float64(one) / np.float64(one)
    rng[1] += np.uint64(1)
    count[0] += 1


@fast
def average(bits, tables, policy):
    """The mean of the tables, added up in float64 in the order of the chunks and rounded once."""
    for s in range(policy.shape[0]):
        for a in range(policy.shape[1]):
            total = 0.0
            for c in range(tables.shape[0]):
                total += np.float64(tables[c, s, a])
            mean = total / tables.shape[0]
            tables[:, s, a] = np.rint(mean) if bits else mean
            policy[s, a] = np.float64(tables[0, s, a]) / np.float64(np.int64(1) << bits)


LOG = ("state", "action", "reward", "next_state", "next_action", "terminated")
LEARNT = ("learner.tables", "hyper.lr.q", "hyper.discount", "learner.step", "loss.q")


def _bind_sweep(on_policy: bool, kernel: Kernel, buffers: Buffers) -> Call:
    bits, log = kernel.dim("bits"), tuple(buffers[f"log.{name}"] for name in LOG)
    program, learnt = sweep_int32 if bits else sweep_fp32, (buffers[name] for name in LEARNT)
    return bind_call(
        program, on_policy, bits, kernel.dim("order"), buffers["rng.update"], log, *learnt
    )


bind_q_learning = partial(_bind_sweep, False)
bind_sarsa = partial(_bind_sweep, True)


def bind_average(kernel: Kernel, buffers: Buffers) -> Call:
    """offline.average: policy.q and every table of learner.tables ← their mean."""
    return bind_call(average, kernel.dim("bits"), buffers["learner.tables"], buffers["policy.q"])
