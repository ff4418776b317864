"""Stochastic policies of on-policy algorithms: soft-max over discrete actions, one soft-max for
each component of a factored action, and a Gaussian whose deviations do not depend on the state.
Native.

The Gaussian is over actions scaled so that the bounds are −1 and 1. The network's outputs are its
means. The logarithms of the standard deviations, one per component, follow the network's weights
and biases in its parameter vector. Samples, from which the policy learns, are not bounded; only the
environment gets them clipped to act.low … act.high. A component without both bounds is not scaled:
its outputs are means in the environment's own units, and a single bound clips it.

For a factored action, `choices` is the number of choices of each component. The network's outputs
are their logits, one component after another; densities and entropies are summed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.counting import size
from pearl_devices.primitives.math.nets import forward, scratch
from pearl_devices.primitives.math.rng import normals, stream_base, uniform
from pearl_devices.primitives.native import (
    bind_call,
    fast,
    fast_apart,
    pick_by_action,
)

HALF_LOG_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))
HALF, ONE, ZERO, INFINITE = (np.float32(x) for x in (0.5, 1.0, 0.0, np.inf))


def orthogonal_params(
    layers: tuple[int, ...], seed: int, *, final_gain: float
) -> npt.NDArray[np.float32]:
    """Return fresh float32 parameters: orthogonal weights times √2, in the last layer times
    final_gain; biases 0 (Saxe et al. 2014; usual for PPO, see Engstrom et al. 2020)."""
    random = np.random.default_rng(seed)
    parts = []
    for layer, (i, o) in enumerate(pairwise(layers)):
        q = random.normal(size=(max(i, o), min(i, o)))
        orthonormalise(q, np.zeros(q.shape[1]))
        gain = final_gain if layer == len(layers) - 2 else math.sqrt(2.0)
        parts += [(gain * (q if i >= o else q.T)).reshape(-1), np.zeros(o)]
    return np.concatenate(parts).astype(np.float32)


@fast
def orthonormalise(a, along):
    """Columns of a (m, n ≤ m) ← each less its parts along the columns before it, with length 1.

    Modified Gram-Schmidt (Björck 1967), row by row, so that a processor's vectors do not decide the
    order of a sum, as they do in LAPACK. along (n): scratch.
    """
    m, n = a.shape
    for k in range(n):
        squares = 0.0
        for i in range(m):
            squares += a[i, k] * a[i, k]
        for j in range(k, n):
            along[j] = 0.0
        for i in range(m):
            a[i, k] /= math.sqrt(squares)
            for j in range(k + 1, n):
                along[j] += a[i, k] * a[i, j]
        for i in range(m):
            for j in range(k + 1, n):
                a[i, j] -= a[i, k] * along[j]


@fast
def log_sum_exp(z):
    """log Σ exp(z) of one row."""
    most = z[0]
    for j in range(1, z.size):
        most = max(most, z[j])
    total = ZERO
    for j in range(z.size):
        total += np.float32(math.exp(z[j] - most))
    return most + np.float32(math.log(total))


@fast
def sample_categorical(z, left):
    """Sample (choice, log probability) from soft-max(z), z one row, by `left`, uniform in [0,
    1)."""
    norm = log_sum_exp(z)
    choice = z.size - 1
    for j in range(z.size - 1):
        left -= np.float32(math.exp(z[j] - norm))
        if left < ZERO:
            choice = j
            break
    return choice, z[choice] - norm


@fast
def draw_discrete(action, rng, z, log_std, low, high, sample, log_prob, choices):
    """Sample actions (N) from soft-max(z), z (N, actions), and compute log probabilities (N)."""
    base = stream_base(rng[0], rng[1])
    rng[1] += np.uint64(1)
    for n in range(z.shape[0]):
        action[n], log_prob[n] = sample_categorical(z[n], np.float32(uniform(base, n)))


@fast
def draw_factored(action, rng, z, log_std, low, high, sample, log_prob, choices):
    """Sample actions (N, A), each component from its soft-max, and compute log probabilities
    (N)."""
    base = stream_base(rng[0], rng[1])
    rng[1] += np.uint64(1)
    for n in range(z.shape[0]):
        log_prob[n], first = ZERO, 0
        for c in range(choices.size):
            left = np.float32(uniform(base, n * choices.size + c))
            action[n, c], density = sample_categorical(z[n, first : first + choices[c]], left)
            log_prob[n] += density
            first += choices[c]


@fast
def draw_gaussian(action, rng, z, log_std, low, high, sample, log_prob, choices):
    """Draw sample (N, A) from the Gaussian of means z; action ← sample scaled, clipped to
    bounds."""
    n, a = sample.shape
    base = stream_base(rng[0], rng[1])
    rng[1] += np.uint64(1)
    normals(base, 0, sample.reshape(n * a))
    for r in range(n):
        log_prob[r] = ZERO
        for c in range(a):
            noise = sample[r, c]
            sample[r, c] = z[r, c] + np.float32(math.exp(log_std[c])) * noise
            half = HALF * (high[c] - low[c])
            middle = low[c] + half
            if not half < INFINITE:
                half, middle = ONE, ZERO
            wanted = middle + half * sample[r, c]
            action[r, c] = min(max(wanted, low[c]), high[c])
        log_prob[r] = gaussian_log_prob(z[r], log_std, sample[r])


@fast
def gaussian_log_prob(mean, log_std, sample):
    """Σ log N(sample; mean, exp(log_std)) over the components of one row."""
    total = ZERO
    for c in range(sample.size):
        away = (sample[c] - mean[c]) * np.float32(math.exp(-log_std[c]))
        total -= HALF * away * away + log_std[c] + HALF_LOG_2_PI
    return total


draw = pick_by_action(draw_discrete, draw_gaussian, draw_factored)


@fast_apart
def infer(
    action, rng, obs, params, layers, size, curved, low, high, sample, log_prob, acts, choices
):  # fmt: skip
    """Do one firing of inference. size: weights and biases; the deviations follow them."""
    z = forward(params[:size], layers, obs, acts, curved)
    draw(action, rng, z, params[size:], low, high, sample, log_prob, choices)


def arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    """Return the arguments of `infer`; arrays that this kind of actions lacks are empty."""
    layers, envs = kernel.layers("actor"), kernel.dim("envs")
    none = np.zeros(0, np.float32)
    return (
        buffers["act.action"],
        buffers["rng.inference"],
        buffers["env.obs"],
        buffers["policy.actor"],
        np.array(layers, np.int64),
        size(kernel),
        bool(kernel.dim("tanh")),
        buffers.get("act.low", none),
        buffers.get("act.high", none),
        buffers.get("act.sample", none.reshape(0, 0)),
        buffers["act.log_prob"],
        scratch(layers, envs)[0],
        buffers.get("act.choices", np.zeros(0, np.int64)),
    )


def bind_inference(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind inference.ppo: act.action, act.log_prob (and act.sample) ← samples from policy.actor."""
    return bind_call(infer, *arguments(kernel, buffers))
