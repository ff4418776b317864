"""Dense networks over flat parameter vectors: forward, backward, Adam, targets, clipping.

A network of widths `layers` (int64 array, input first) has hidden layers of ReLU, or of tanh with
`curved`, and a linear output. Its parameters lie in one float32 vector: per layer the weights
(in, out) row by row, then the biases. The activations of a pass over `rows` rows lie in one flat
scratch vector, one block (rows, width) after another, without the input. Matrices are C-contiguous
float32, multiplied by `products`.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math.fused import multiply_add
from pearl_devices.primitives.math.products import (
    affine,
    column_sums,
    input_gradient,
    outer_narrow,
    total_squares,
    weight_gradient,
)
from pearl_devices.primitives.math.tanh import tanh_backward, tanh_in_place
from pearl_devices.primitives.math.vectors import LANES
from pearl_devices.primitives.native import bind_call, fast, fast_apart, fast_apart_counted

Array = npt.NDArray[np.float32]

CLIP_EPS = 1e-6
"""Added to the norm before dividing, as in torch.nn.utils.clip_grad_norm_."""


def init_params(layers: tuple[int, ...], seed: int, *, final_scale: float | None = None) -> Array:
    """Return fresh float32 parameters: weights and biases uniform in ±1/sqrt(fan in).

    final_scale: half width for the last layer instead (3e-3 in Lillicrap et al. 2016, DDPG).
    """
    random = np.random.default_rng(seed)
    parts = []
    for layer, (i, o) in enumerate(pairwise(layers)):
        half = 1.0 / math.sqrt(max(i, 1))  # a network without inputs is a constant
        if final_scale is not None and layer == len(layers) - 2:
            half = final_scale
        parts.append(half * (2.0 * random.random(i * o + o) - 1.0))
    return np.concatenate(parts).astype(np.float32)


@fast_apart_counted
def forward(params, layers, x, acts, curved=False):
    """Run x (rows, in) through the network; return the output, a view (rows, out) of `acts`.

    curved: hidden layers use tanh instead of ReLU. Compiled callers always pass it, because an
        omitted argument has another type, for which numba compiles everything again.
    """
    rows, offset, at = x.shape[0], 0, 0
    a = x
    for layer in range(layers.size - 1):
        i, o = layers[layer], layers[layer + 1]
        weights = params[offset : offset + i * o].reshape(i, o)
        offset += i * o
        bias = params[offset : offset + o]
        offset += o
        flat = acts[at : at + rows * o]
        out = flat.reshape(rows, o)
        at += rows * o
        hidden = layer < layers.size - 2
        affine(a, weights, bias, out, 1 if hidden and not curved else 0)
        if hidden and curved:
            tanh_in_place(flat)
        a = out
    return a


@fast_apart
def backward(params, layers, x, acts, stored, rows, deltas, grad, tail, d_tail, curved=False):
    """Compute the gradient of a loss from its derivative by the output.

    x (rows, in): the input. acts: activations of a pass over `stored` ≥ rows rows; the first `rows`
    count. deltas: flat scratch as `scratch` makes it; it begins with the derivative by the output
    (rows, out). grad: as params; not written if its size is 0. tail, d_tail (rows, tail): takes the
    derivative by the last `tail` components of the input. curved: as in `forward`.
    """
    widest = layers[0]
    for layer in range(1, layers.size):
        widest = max(widest, layers[layer])
    half = (deltas.size - 2 * LANES * widest) // 2
    spare = deltas[2 * half :]
    offset, at = params.size, 0
    for layer in range(1, layers.size):
        at += stored * layers[layer]
    here = 0
    for layer in range(layers.size - 2, -1, -1):
        i, o = layers[layer], layers[layer + 1]
        offset -= i * o + o
        at -= stored * o
        d = deltas[here : here + rows * o].reshape(rows, o)
        weights = params[offset : offset + i * o].reshape(i, o)
        if layer > 0:
            below = at - stored * i
            a = acts[below : below + rows * i].reshape(rows, i)
        else:
            a = x
        if grad.size > 0:
            weights_grad = grad[offset : offset + i * o].reshape(i, o)
            if o < LANES and i > LANES:
                outer_narrow(a, d, spare, weights_grad)
            else:
                weight_gradient(a, d, weights_grad)
            column_sums(d, grad[offset + i * o : offset + i * o + o])
        if layer > 0:
            here = half - here
            d_below = deltas[here : here + rows * i].reshape(rows, i)
            input_gradient(d, weights, spare, d_below, a, 0 if curved else 1)
            if curved:
                tanh_backward(deltas[here : here + rows * i], acts[below : below + rows * i])
        elif tail > 0:
            input_gradient(d, weights[i - tail :], spare, d_tail, d_tail, np.int64(0))


@fast
def total(x):
    """Sum a flat float32 vector, in four interleaved parts."""
    zero = np.float32(0.0)
    whole = x.size - x.size % 4
    a, b, c, d = zero, zero, zero, zero
    for j in range(0, whole, 4):
        a += x[j]
        b += x[j + 1]
        c += x[j + 2]
        d += x[j + 3]
    for j in range(whole, x.size):
        a += x[j]
    return (a + b) + (c + d)


@fast
def clip_factor(grad, clip_norm):
    """The factor that limits the norm of a gradient to clip_norm (0: no limit)."""
    if clip_norm <= 0.0:
        return np.float32(1.0)
    norm = math.sqrt(np.float64(total_squares(grad)))
    return np.float32(min(1.0, clip_norm / (norm + CLIP_EPS)))


@fast
def rate(lr, done):
    """The learning rate after `done` steps.

    lr: one number, or a schedule: first and last value, the steps between them, and whether the
        rate falls along half a cosine (1) or a line (0)."""
    if lr.size == 1:
        return lr[0]
    way = min(done / lr[2], 1.0)
    if lr[3] > 0.0:
        way = 0.5 - 0.5 * math.cos(math.pi * way)
    return lr[0] + (lr[1] - lr[0]) * way


@fast_apart
def adam(params, grad, m, v, step, lr, hyper, clip_norm):
    """One step of Adam (Kingma and Ba 2015), bias corrections as in torch.optim.Adam.

    step: this step's number, from 1. hyper: beta1, beta2, eps.
    """
    scale = clip_factor(grad, clip_norm)
    beta1, beta2, eps = np.float32(hyper[0]), np.float32(hyper[1]), np.float32(hyper[2])
    rest1, rest2 = np.float32(1.0 - hyper[0]), np.float32(1.0 - hyper[1])
    size = np.float32(lr / (1.0 - hyper[0] ** step))
    root = np.float32(1.0 / math.sqrt(1.0 - hyper[1] ** step))
    for j in range(params.size):
        g = grad[j] * scale
        m[j] = multiply_add(beta1, m[j], rest1 * g)
        v[j] = multiply_add(beta2, v[j], rest2 * g * g)
        params[j] -= size * m[j] / multiply_add(np.sqrt(v[j]), root, eps)


@fast
def update_target(target, params, step, tau, every):
    """Move the target by tau at each step; if every > 0, copy all of it each `every` steps."""
    if every > 0:
        if step % every == 0:
            for j in range(params.size):
                target[j] = params[j]
    else:
        share = np.float32(tau)
        for j in range(params.size):
            target[j] = multiply_add(share, params[j] - target[j], target[j])


@fast
def td_gradient(error, weight, rows, huber):
    """Return (loss, derivative by the value) of a row's error = value − target, divided by rows.

    Half the squared error if huber is 0, else torch's huber_loss with that delta.
    """
    scale = weight / np.float32(rows)
    size = abs(error)
    if huber <= np.float32(0.0) or size <= huber:
        return np.float32(0.5) * scale * error * error, scale * error
    slope = huber if error > np.float32(0.0) else -huber
    return scale * huber * (size - np.float32(0.5) * huber), scale * slope


def scratch(layers: tuple[int, ...], rows: int) -> tuple[Array, Array]:
    """Make flat scratch for a pass over `rows` rows: activations, and the workspace of `backward`.

    The workspace is two blocks of rows · max(layers), then a strip of transposed weights (see
    `products.input_gradient`).
    """
    return (
        np.zeros(rows * sum(layers[1:]), np.float32),
        np.zeros(2 * (rows + LANES) * max(layers), np.float32),
    )


@fast
def copy(source, target):
    for j in range(source.size):
        target[j] = source[j]


@fast
def copy_both(source, target, other_source, other_target):
    copy(source, target)
    copy(other_source, other_target)


def bind_sync(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind param_sync: policy.X ← learner.X. kernel.args['network'] is X, or X+Y for two
    networks."""
    names = str(kernel.args["network"]).split("+")
    arrays = [buffers[f"{side}.{name}"] for name in names for side in ("learner", "policy")]
    return bind_call(copy if len(names) == 1 else copy_both, *arrays)
