"""Forward passes in the arithmetic of the simulated FPGA.

The engine returns the outputs. The host computes exploration, action bounds and tanh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.fpga.passes import flush, forward, hidden
from pearl_devices.primitives.native import bind_call, fast_apart
from pearl_devices.primitives.updates.ddpg import explore_around
from pearl_devices.primitives.updates.dqn import choose


@fast_apart
def outputs(obs, params, layers, inputs, acts):
    """acts ← activations of a forward pass of the observations."""
    rows = obs.shape[0]
    for n in range(rows):
        for c in range(obs.shape[1]):
            inputs[n, c] = flush(obs[n, c])
    forward(params, layers, inputs, acts, rows, rows)


@fast_apart
def infer_discrete(rng, obs, params, explore, action, layers, inputs, acts):
    outputs(obs, params, layers, inputs, acts)
    rows = obs.shape[0]
    q = acts[hidden(layers, rows) :].reshape(rows, layers[layers.size - 1])
    choose(rng, q, explore, action)


@fast_apart
def infer_continuous(rng, obs, params, explore, low, high, action, layers, inputs, acts):
    outputs(obs, params, layers, inputs, acts)
    rows = obs.shape[0]
    mean = acts[hidden(layers, rows) :].reshape(rows, layers[layers.size - 1])
    explore_around(rng, mean, low, high, explore, action)


def _scratch(kernel: Kernel) -> tuple[Any, ...]:
    layers, envs = kernel.layers(), kernel.dim("envs")
    return (
        np.array(layers, np.int64),
        np.zeros((envs, layers[0]), np.float32),
        np.zeros(envs * sum(layers[1:]), np.float32),
    )


def bind_dqn(kernel: Kernel, buffers: Buffers, array: int) -> Call:
    """inference.dqn: act.action ← epsilon-greedy on policy.q. The array's size changes no bit."""
    names = ("rng.inference", "env.obs", "policy.q", "explore", "act.action")
    return bind_call(infer_discrete, *(buffers[name] for name in names), *_scratch(kernel))


def bind_ddpg(kernel: Kernel, buffers: Buffers, array: int) -> Call:
    """inference.ddpg: act.action ← policy.actor with Gaussian noise, inside the bounds."""
    names = (
        "rng.inference", "env.obs", "policy.actor", "explore", "act.low", "act.high", "act.action"
    )  # fmt: skip
    return bind_call(infer_continuous, *(buffers[name] for name in names), *_scratch(kernel))
