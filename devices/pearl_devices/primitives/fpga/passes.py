"""Products, norm, Adam and targets in the arithmetic of the simulated FPGA
(`pearl_devices/fpga/rtl`).

A product is rounded before it is added. Sums run in the order of k, with the bias last. A subnormal
number counts as +0. Parameters of a layer are (inputs + 1, outputs) row by row, the bias last.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.primitives.math.nets import rate
from pearl_devices.primitives.native import fast, fast_apart

TINY = np.float32(1.1754943508222875e-38)
"""The least normal float32."""
CLIP_EPS = np.float32(1e-6)


@fast
def flush(x):
    """Return x as the DSP block reads x: a subnormal number or zero is +0."""
    return np.float32(0.0) if abs(x) < TINY else x


@fast_apart
def flush_all(flat):
    for j in range(flat.size):
        flat[j] = flush(flat[j])


@fast
def flush_net(net):
    flush_all(net.params)
    flush_all(net.target)
    flush_all(net.m)
    flush_all(net.v)


@fast_apart
def forward_layer(x, i, weights, out, relu):
    """out (rows, o) ← the first i columns of x times weights (i + 1, o)."""
    rows, o = out.shape
    for r in range(rows):
        row = out[r]
        value = x[r, 0]
        for c in range(o):
            row[c] = flush(value * weights[0, c])
        for k in range(1, i):
            value = x[r, k]
            for c in range(o):
                row[c] = flush(row[c] + flush(value * weights[k, c]))
        for c in range(o):
            total = flush(row[c] + weights[i, c])
            row[c] = np.float32(0.0) if relu and total < np.float32(0.0) else total


@fast_apart
def weight_gradient(x, i, d, gradient):
    """gradient (i + 1, o) ← [first i columns of x, ones]ᵀ · d (rows, o)."""
    rows, o = d.shape
    for b in range(rows):
        for a in range(i):
            value = x[b, a]
            for c in range(o):
                term = flush(value * d[b, c])
                gradient[a, c] = term if b == 0 else flush(gradient[a, c] + term)
        for c in range(o):
            gradient[i, c] = d[b, c] if b == 0 else flush(gradient[i, c] + d[b, c])


@fast_apart
def input_gradient(d, weights, first, out, transposed):
    """out (rows, i) ← d (rows, o) · (rows first … of the weights)ᵀ."""
    rows, o = d.shape
    count = out.shape[1]
    for c in range(o):
        for a in range(count):
            transposed[c * count + a] = weights[first + a, c]
    for b in range(rows):
        row = out[b]
        for c in range(o):
            value, start = d[b, c], c * count
            if c == 0:
                for a in range(count):
                    row[a] = flush(value * transposed[a])
            else:
                for a in range(count):
                    row[a] = flush(row[a] + flush(value * transposed[start + a]))


@fast
def mask(out, active):
    """out ← 0 where the activation is not above 0."""
    for b in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[b, a] = out[b, a] if active[b, a] > np.float32(0.0) else np.float32(0.0)


@fast
def hidden(layers, stored):
    """Return the offset of the output in the activations of a pass with `stored` rows per block."""
    at = 0
    for layer in range(1, layers.size - 1):
        at += stored * layers[layer]
    return at


@fast_apart
def forward(params, layers, x, acts, stored, rows):
    """Run the first `rows` rows of x. The output is the last block of `acts`. stored: rows of each
    block of `acts`."""
    offset, at = 0, 0
    a = x[:rows]
    for layer in range(layers.size - 1):
        i, o = layers[layer], layers[layer + 1]
        weights = params[offset : offset + (i + 1) * o].reshape(i + 1, o)
        out = acts[at : at + rows * o].reshape(rows, o)
        forward_layer(a, i, weights, out, layer < layers.size - 2)
        offset += (i + 1) * o
        at += stored * o
        a = out


@fast_apart
def backward(net, x, stored, d_out, tail, transposed):
    """Compute the gradient with respect to the last tail.shape[1] inputs; if there are none, with
    respect to the parameters.

    net: its activations are of a forward pass of x. d_out (rows, out): derivative of the loss with
    respect to the output.
    """
    rows, layers, inputs = d_out.shape[0], net.layers, tail.shape[1]
    half = net.deltas.size // 2
    offset, at = net.params.size, 0
    for layer in range(1, layers.size):
        at += stored * layers[layer]
    d, here = d_out, 0
    for layer in range(layers.size - 2, -1, -1):
        i, o = layers[layer], layers[layer + 1]
        offset -= (i + 1) * o
        at -= stored * o
        weights = net.params[offset : offset + (i + 1) * o].reshape(i + 1, o)
        a = x[:rows]
        if layer > 0:
            below = at - stored * i
            a = net.acts[below : below + rows * i].reshape(rows, i)
        if inputs == 0:
            weight_gradient(a, i, d, net.grad[offset : offset + (i + 1) * o].reshape(i + 1, o))
        if layer > 0:
            out = net.deltas[here : here + rows * i].reshape(rows, i)
            input_gradient(d, weights, 0, out, transposed)
            mask(out, a)
            d, here = out, half - here
        elif inputs > 0:
            input_gradient(d, weights, i - inputs, tail, transposed)


@fast_apart
def clip_factor(gradient, layers, array, sums, clip_norm):
    """Return the factor that clips a gradient (`rtl/norm.v`).

    sums (array,): scratch for the squares of each column over all array × array tiles, last layer
    first. The columns are then added in order.
    """
    if clip_norm <= 0.0:
        return np.float32(1.0)
    for c in range(array):
        sums[c] = np.float32(0.0)
    offset = gradient.size
    for layer in range(layers.size - 2, -1, -1):
        down, across = layers[layer] + 1, layers[layer + 1]
        offset -= down * across
        for first in range(0, down, array):
            for left in range(0, across, array):
                count = min(array, across - left)
                for r in range(first, min(first + array, down)):
                    start = offset + r * across + left
                    for c in range(count):
                        g = gradient[start + c]
                        sums[c] = flush(sums[c] + flush(g * g))
    total = np.float32(0.0)
    for c in range(array):
        total = flush(total + sums[c])
    length = flush(np.sqrt(total) + CLIP_EPS)
    factor = flush(np.float32(clip_norm) / length)
    return min(factor, np.float32(1.0))


@fast_apart
def adam(params, target, gradient, m, v, step, lr, hyper, scale, mode, tau):
    """Take one step of Adam and update the target (`rtl/adam.v`).

    mode: 0 keeps the target, 1 copies the parameters, 2 moves the target by tau.
    """
    beta1, beta2, eps = np.float32(hyper[0]), np.float32(hyper[1]), np.float32(hyper[2])
    rest1, rest2 = np.float32(1.0 - hyper[0]), np.float32(1.0 - hyper[1])
    size = np.float32(lr / (1.0 - hyper[0] ** step))
    root = np.float32(1.0 / np.sqrt(1.0 - hyper[1] ** step))
    for j in range(params.size):
        g = flush(gradient[j] * scale)
        mean = flush(flush(beta1 * m[j]) + flush(rest1 * g))
        square = flush(flush(beta2 * v[j]) + flush(flush(rest2 * g) * g))
        divisor = flush(flush(np.sqrt(square) * root) + eps)
        w = flush(params[j] - flush(flush(size * mean) / divisor))
        m[j], v[j], params[j] = mean, square, w
        if mode == 2:
            target[j] = flush(target[j] + flush(tau * flush(w - target[j])))
        elif mode == 1:
            target[j] = w


@fast
def target_mode(count, every):
    """Return the mode of the target in gradient step `count`."""
    if every > 0.0:
        return 1 if count % every == 0.0 else 0
    return 2


@fast_apart
def optimise(net, rules, array, sums):
    """Clip the gradient of a network, and take a step of Adam along the gradient."""
    net.steps[0] += 1
    scale = clip_factor(net.grad, net.layers, array, sums, rules.clip_norm[0])
    adam(
        net.params, net.target, net.grad, net.m, net.v, net.steps[0],
        rate(net.lr, net.steps[0] - 1), rules.adam, scale,
        target_mode(rules.count[0], rules.every[0]), np.float32(rules.tau[0]),
    )  # fmt: skip


@fast
def target_value(ahead, reward, discount):
    return flush(flush(flush(discount) * ahead) + flush(reward))


@fast
def td_terms(value, wanted, weight, inv_rows, delta):
    """Return three figures of one sample: |error|; the derivative of the loss with respect to the
    value (`rtl/loss.v`); its part of the loss, which the host computes."""
    error = flush(value - wanted)
    size, cut, share = abs(error), error, weight * inv_rows
    part = np.float32(0.5) * share * size * size
    if delta > np.float32(0.0) and size > delta:
        cut = delta if error > np.float32(0.0) else -delta
        part = share * delta * (size - np.float32(0.5) * delta)
    return size, flush(flush(flush(weight) * inv_rows) * cut), part
