"""The common code of native gradient steps with several critics: a network with its optimiser as
one argument, critics over observation and action, and the loop of the fused call.

A critic's input is the observation followed by the action; its output is one value per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers
from pearl_devices.buffers import allocate
from pearl_devices.kernel import Dim, Kernel
from pearl_devices.primitives.math.nets import (
    adam,
    backward,
    forward,
    rate,
    scratch,
    td_gradient,
    total,
    update_target,
)
from pearl_devices.primitives.native import fast, fast_apart
from pearl_devices.primitives.replay.observations import unit_of
from pearl_devices.primitives.replay.ring import (
    BATCH,
    ROW,
    draw,
    gather,
    rows,
    set_priorities,
    tree_arguments,
)


class Net(NamedTuple):
    """A network that learns, its target (empty if it has none), and the scratch of its passes.

    Arrays as learner.* in `kernels.arrays`; acts, deltas, grad as in `nets.backward`.
    """

    layers: Any
    params: Any
    target: Any
    m: Any
    v: Any
    steps: Any
    lr: Any
    loss: Any
    grad: Any
    acts: Any
    deltas: Any


class CriticRules(NamedTuple):
    """Constants of a gradient step, each an array, its two counters and the stop word."""

    stop: Any
    count: Any
    rng: Any
    adam: Any
    tau: Any
    every: Any
    clip_norm: Any
    huber: Any
    low: Any
    high: Any


class Batch(NamedTuple):
    """batch.*: k batches of B rows."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    discount: Any
    weight: Any
    td: Any


class Source(NamedTuple):
    """The replay, and the arguments of a draw. tree and levels are empty if it is uniform;
    everything is empty if batches are given instead of drawn."""

    rng: Any
    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    cursor: Any
    tree: Any
    levels: Any
    fanout: int
    beta: Any
    priority: Any
    envs: int
    n_step: int
    unit: Any
    gamma: Any
    index: Any


@fast
def join(obs, action, out):
    """out ← [obs, action], row by row."""
    inputs = obs.shape[1]
    for r in range(obs.shape[0]):
        for c in range(inputs):
            out[r, c] = obs[r, c]
        for c in range(action.shape[1]):
            out[r, inputs + c] = action[r, c]


@fast
def descend(net, rules):
    """Take one step of Adam along net.grad."""
    net.steps[0] += 1
    adam(
        net.params, net.grad, net.m, net.v, net.steps[0], rate(net.lr, net.steps[0] - 1),
        rules.adam, rules.clip_norm[0],
    )  # fmt: skip


@fast
def follow_target(net, rules):
    update_target(net.target, net.params, rules.count[0], rules.tau[0], rules.every[0])


@fast
def least_of_targets(critic1, critic2, joined, value):
    """value (B) ← the smaller of the two target critics' values of `joined` (B, O + A)."""
    first = forward(critic1.target, critic1.layers, joined, critic1.acts, False)
    second = forward(critic2.target, critic2.layers, joined, critic2.acts, False)
    for b in range(value.size):
        value[b] = min(first[b, 0], second[b, 0])


@fast_apart
def critic_step(net, joined, wanted, weight, td, parts, rules):
    """Take a gradient step of a critic towards `wanted` (B); add half of |error| to td (B)."""
    value = forward(net.params, net.layers, joined, net.acts, False)
    count, delta = joined.shape[0], np.float32(rules.huber[0])
    for b in range(count):
        error = value[b, 0] - wanted[b]
        td[b] += np.float32(0.5) * abs(error)
        parts[b], net.deltas[b] = td_gradient(error, weight[b], count, delta)
    net.loss[0] = total(parts)
    backward(
        net.params,
        net.layers,
        joined,
        net.acts,
        count,
        count,
        net.deltas,
        net.grad,
        np.int64(0),
        joined,
        False,
    )
    descend(net, rules)


@fast
def sample_batch(source, batch, s):
    """Draw batch number s from the replay; do nothing if batches are given."""
    if source.index.size == 0:
        return
    draw(
        source.rng, source.cursor, source.tree, source.levels, source.fanout, source.beta,
        source.index[s], batch.weight[s],
    )  # fmt: skip
    gather(
        source.obs, source.action, source.reward, source.next_obs, source.terminated,
        source.truncated, source.cursor, source.envs, source.n_step, source.unit, source.gamma[0],
        source.index[s], batch.obs[s], batch.action[s], batch.reward[s], batch.next_obs[s],
        batch.discount[s],
    )  # fmt: skip


@fast
def update_priorities(source, batch, s):
    """Write the priorities of batch number s, if the replay is prioritised."""
    if source.tree.size > 0:
        set_priorities(
            source.tree, source.levels, source.fanout, source.priority, source.index[s], batch.td[s]
        )


def net_of(name: str, kernel: Kernel, buffers: Buffers) -> Net:
    """Return network `name` of an update or learn kernel, with fresh scratch."""
    layers, params = kernel.layers(name), buffers[f"learner.{name}"]
    acts, deltas = scratch(layers, kernel.dim("batch"))
    return Net(
        layers=np.array(layers, np.int64),
        params=params,
        target=buffers.get(f"learner.{name}.target", np.zeros(0, np.float32)),
        m=buffers[f"learner.{name}.m"],
        v=buffers[f"learner.{name}.v"],
        steps=buffers[f"learner.{name}.steps"],
        lr=buffers[f"hyper.lr.{name}"],
        loss=buffers[f"loss.{name}"],
        grad=np.zeros_like(params),
        acts=acts,
        deltas=deltas,
    )


def rules_of(buffers: Buffers) -> CriticRules:
    """Return the constants. Arrays that a gradient step does not use are empty or 0: rng.update if
    the step draws nothing, the bounds of actions if actions are discrete."""
    names = (
        "loop.stop", "learner.step", "rng.update", "hyper.adam", "hyper.tau", "hyper.target_every",
        "hyper.clip_norm", "hyper.huber", "act.low", "act.high",
    )  # fmt: skip
    none = np.zeros(0, np.float32)
    found = {"rng.update": np.zeros(2, np.uint64), "act.low": none, "act.high": none, **buffers}
    return CriticRules._make(found[name] for name in names)


def batch_of(buffers: Buffers) -> Batch:
    columns = rows(buffers, "batch", BATCH, lead=2)
    return Batch._make((*columns, buffers["batch.weight"], buffers["batch.td"]))


def source_of(kernel: Kernel, buffers: Buffers) -> Source:
    """Return the replay of a learn kernel; for an update kernel, whose batches are given, an empty
    one.

    So both are the same compiled function.
    """
    if kernel.kind.startswith("update."):
        rows_of: dict[str, Dim] = {"envs": 1, "capacity": 0, "prioritised": 0, "fanout": 2}
        kernel = Kernel("replay_sample", {**kernel.dims, **rows_of, "steps": 0, "n_step": 1})
        buffers = allocate([kernel])
    prioritised = kernel.dim("prioritised")
    return Source._make(
        (
            buffers["rng.replay_sample"],
            *rows(buffers, "replay", ROW),
            buffers["replay.cursor"],
            *tree_arguments(kernel, buffers),
            buffers["replay.beta"] if prioritised else np.zeros(3),
            buffers["replay.priority"] if prioritised else np.zeros(3),
            kernel.dim("envs"),
            kernel.dim("n_step"),
            unit_of(kernel),
            buffers["hyper.discount"],
            buffers["batch.index"],
        )
    )


def learn_arguments(kernel: Kernel, buffers: Buffers) -> tuple[Source, Batch, CriticRules]:
    """Return the first arguments of every algorithm's `learn`."""
    return source_of(kernel, buffers), batch_of(buffers), rules_of(buffers)
