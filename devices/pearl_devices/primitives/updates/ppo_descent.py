"""The step that PPO and A2C take with the gradients of both networks, native."""

from __future__ import annotations

import math

import numpy as np

from pearl_devices.primitives.math.nets import CLIP_EPS, adam, rate
from pearl_devices.primitives.math.products import total_squares
from pearl_devices.primitives.native import fast


@fast
def rmsprop(params, grad, v, lr, hyper):
    """v ← decay · v + (1 − decay) · g²; params −= lr · g / √(v + eps) (Mnih et al. 2016).

    hyper: decay, eps.
    """
    decay, eps, size = np.float32(hyper[0]), np.float32(hyper[1]), np.float32(lr)
    rest = np.float32(1.0 - hyper[0])
    for j in range(params.size):
        g = grad[j]
        v[j] = decay * v[j] + rest * g * g
        params[j] -= size * g / np.sqrt(v[j] + eps)


@fast
def limit(grad, factor):
    for j in range(grad.size):
        grad[j] *= factor


@fast
def descend(net, lr, rules):
    """Take one optimiser step along net.grad: RMSprop if its decay is above 0, else Adam."""
    net.steps[0] += 1
    if rules.rmsprop[0] > 0.0:
        rmsprop(net.params, net.grad, net.v, lr, rules.rmsprop)
    else:
        adam(net.params, net.grad, net.m, net.v, net.steps[0], lr, rules.adam, 0.0)


@fast
def move(rules, share, done, actor, critic):
    """Take one optimiser step on both networks. share: of the learning rates; done: gradient steps
    before, for the schedules."""
    if rules.clip_norm[0] > 0.0:
        squares = np.float64(total_squares(actor.grad)) + np.float64(total_squares(critic.grad))
        factor = rules.clip_norm[0] / (math.sqrt(squares) + CLIP_EPS)
        if factor < 1.0:
            limit(actor.grad, np.float32(factor))
            limit(critic.grad, np.float32(factor))
    rules.count[0] += 1
    descend(actor, share * rate(actor.lr, done), rules)
    descend(critic, share * rate(critic.lr, done), rules)


@fast
def anneal(count, total_steps):
    """Share of the learning rate after `count` of total_steps gradient steps; 1 if that is 0."""
    return max(1.0 - count / total_steps, 0.0) if total_steps > 0.0 else 1.0
