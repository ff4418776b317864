"""PPO (Schulman et al. 2017) and A2C (Mnih et al. 2016): all gradient steps on one rollout, native.

The loss of a minibatch is mean(−min(r · A, clip(r) · A)) + value_weight · mean((V − R)²) −
entropy · mean(H), with r = exp(log π(a) − log π_old(a)). With value clipping, (V − R)² is replaced
by the larger of (V − R)² and (V_old + clip(V − V_old) − R)², as in the authors' code. With
`normalise`, A is normalised over the minibatch (mean 0, unbiased standard deviation 1, 1e-8 added).
Gradients of both networks are clipped by their common norm. The step is Adam's or RMSprop's. If
`hyper.anneal` is not 0, its size falls linearly to 0 over that number of gradient steps; else
`nets.rate` gives it at the first gradient step of a firing. With `hyper.target_kl`, a firing ends
before the first gradient step whose minibatch `is_too_far` from the policy that acted.

A2C is one gradient step over the whole rollout. There r is 1, because a row has the same bits in
any group of rows, so the gradient is that of −A · log π(a) (Huang et al. 2022). This gradient is
the mean over vector steps; `ppo_steps` adds it up vector step by vector step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.counting import parameters
from pearl_devices.primitives import KL_MARGIN
from pearl_devices.primitives.math.nets import backward, forward, total
from pearl_devices.primitives.math.products import total_squares
from pearl_devices.primitives.math.rng import stream_base, uniform
from pearl_devices.primitives.native import bind_call, fast, fast_apart, pick_by_action, unless_none
from pearl_devices.primitives.replay.observations import unit_of
from pearl_devices.primitives.updates import critics
from pearl_devices.primitives.updates.policies import HALF_LOG_2_PI, gaussian_log_prob, log_sum_exp
from pearl_devices.primitives.updates.ppo_descent import anneal, move
from pearl_devices.primitives.updates.stop_word import call_ends, is_under_way

ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
NORMAL_EPS = np.float32(1e-8)


class PpoRules(NamedTuple):
    """Constants of the gradient steps, each an array, their counters and the stop word."""

    stop: Any
    count: Any
    rng: Any
    adam: Any
    rmsprop: Any
    anneal: Any
    clip_norm: Any
    clip: Any
    value_clip: Any
    entropy: Any
    value_weight: Any
    normalise: Any
    target_kl: Any
    choices: Any


class Rows(NamedTuple):
    """The arrays that gradient steps read of R rows: of the rollout, or of a minibatch."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    advantage: Any
    returns: Any


@fast
def shuffle(base, epoch, order):
    """Permute `order` with the numbers of one epoch (Fisher and Yates, Durstenfeld 1964)."""
    rows = order.size
    for left in range(rows - 1, 0, -1):
        other = np.int64(uniform(base, epoch * rows + left) * (left + 1))
        order[left], order[other] = order[other], order[left]


@fast
def gather(rollout, unit, order, rows):
    """rows ← the rows of the rollout that `order` (B) lists. unit: of stored observations; 1 for
    float32."""
    inputs, width = rows.obs.shape[1], rows.action.size // order.size
    actions = rows.action.reshape(rows.action.size)
    all_actions = rollout.action.reshape(rollout.action.size)
    for b in range(order.size):
        r = order[b]
        for c in range(inputs):
            rows.obs[b, c] = np.float32(rollout.obs[r, c]) * unit
        for c in range(width):
            actions[b * width + c] = all_actions[r * width + c]
        rows.log_prob[b] = rollout.log_prob[r]
        rows.value[b] = rollout.value[r]
        rows.advantage[b] = rollout.advantage[r]
        rows.returns[b] = rollout.returns[r]


@fast
def normalise(x):
    """Normalise to mean 0 and unbiased standard deviation 1, in place; a single row is
    unchanged."""
    if x.size < 2:
        return
    mean = total(x) / np.float32(x.size)
    for b in range(x.size):
        x[b] -= mean
    deviation = np.float32(math.sqrt(total_squares(x) / np.float32(x.size - 1)))
    scale = ONE / (deviation + NORMAL_EPS)
    for b in range(x.size):
        x[b] *= scale


@fast
def surrogate(log_prob, old, advantage, clip):
    """Return (−min(r · A, clip(r) · A), its derivative by log_prob); with clip 0, r · A only."""
    ratio = np.float32(math.exp(log_prob - old))
    free = ratio * advantage
    if clip > ZERO:
        held = min(max(ratio, ONE - clip), ONE + clip) * advantage
        if held < free:
            return -held, ZERO
    return -free, -free


@fast
def softmax_loss(action, z, log_std, rows, clip, weight, d, d_log_std, parts, choices):
    """parts (B) ← loss of each row of logits z (B, actions), d ← the derivative of their mean."""
    count, actions = z.shape
    share = ONE / np.float32(count)
    for b in range(count):
        norm, entropy = log_sum_exp(z[b]), ZERO
        for j in range(actions):
            log_p = z[b, j] - norm
            d[b, j] = np.float32(math.exp(log_p))
            entropy -= d[b, j] * log_p
        taken = action[b]
        loss, slope = surrogate(z[b, taken] - norm, rows.log_prob[b], rows.advantage[b], clip)
        parts[b] = loss - weight * entropy
        for j in range(actions):
            p = d[b, j]
            d[b, j] = share * p * (weight * (z[b, j] - norm + entropy) - slope)
        d[b, taken] += share * slope


@fast
def factored_loss(action, z, log_std, rows, clip, weight, d, d_log_std, parts, choices):
    """The same for components with `choices` each; densities and entropies are summed."""
    count = z.shape[0]
    share = ONE / np.float32(count)
    for b in range(count):
        log_prob, entropy, first = ZERO, ZERO, 0
        for c in range(choices.size):
            row, probability = z[b, first : first + choices[c]], d[b, first : first + choices[c]]
            norm, own = log_sum_exp(row), ZERO
            for j in range(row.size):
                probability[j] = np.float32(math.exp(row[j] - norm))
                own -= probability[j] * (row[j] - norm)
            for j in range(row.size):  # weight · p · (log p + H) is the entropy's gradient
                probability[j] *= weight * (row[j] - norm + own)
            log_prob += row[action[b, c]] - norm
            entropy += own
            first += choices[c]
        loss, slope = surrogate(log_prob, rows.log_prob[b], rows.advantage[b], clip)
        parts[b] = loss - weight * entropy
        first = 0
        for c in range(choices.size):
            row, slopes = z[b, first : first + choices[c]], d[b, first : first + choices[c]]
            norm = log_sum_exp(row)
            for j in range(row.size):
                slopes[j] = share * (slopes[j] - slope * np.float32(math.exp(row[j] - norm)))
            slopes[action[b, c]] += share * slope
            first += choices[c]


@fast
def gaussian_loss(action, z, log_std, rows, clip, weight, d, d_log_std, parts, choices):
    """The same for means z (B, A); d_log_std (A) ← the derivative by log standard deviations."""
    count, a = z.shape
    share, entropy = ONE / np.float32(count), ZERO
    for c in range(a):
        entropy += log_std[c] + HALF + HALF_LOG_2_PI
        d_log_std[c] = -weight
    for b in range(count):
        log_prob = gaussian_log_prob(z[b], log_std, action[b])
        loss, slope = surrogate(log_prob, rows.log_prob[b], rows.advantage[b], clip)
        parts[b] = loss - weight * entropy
        for c in range(a):
            narrow = np.float32(math.exp(-log_std[c]))
            away = (action[b, c] - z[b, c]) * narrow
            d[b, c] = share * slope * away * narrow
            d_log_std[c] += share * slope * (away * away - ONE)


policy_loss = pick_by_action(softmax_loss, gaussian_loss, factored_loss)


@fast
def softmax_log_prob(action, z, log_std, b, choices):
    """log π of row b's action."""
    return z[b, action[b]] - log_sum_exp(z[b])


@fast
def factored_log_prob(action, z, log_std, b, choices):
    log_prob, first = ZERO, 0
    for c in range(choices.size):
        row = z[b, first : first + choices[c]]
        log_prob += row[action[b, c]] - log_sum_exp(row)
        first += choices[c]
    return log_prob


@fast
def normal_log_prob(action, z, log_std, b, choices):
    return gaussian_log_prob(z[b], log_std, action[b])


log_prob_of = pick_by_action(softmax_log_prob, normal_log_prob, factored_log_prob)


@fast
def is_too_far(target_kl, rows, z, log_std, choices, parts):
    """Whether a minibatch's estimated divergence from the acting policy, mean(r − 1 − log r), is
    above KL_MARGIN times the target."""
    for b in range(parts.size):
        moved = log_prob_of(rows.action, z, log_std, b, choices) - rows.log_prob[b]
        parts[b] = np.float32(math.exp(moved)) - ONE - moved
    return total(parts) / np.float32(parts.size) > KL_MARGIN * target_kl[0]


beyond = unless_none(is_too_far)


@fast
def value_loss(value, rows, clip, weight, d, parts):
    """parts (B) ← value_weight · squared error of value (B, 1), d ← derivative of its mean."""
    share = weight / np.float32(parts.size)
    for b in range(parts.size):
        error = value[b, 0] - rows.returns[b]
        slope = TWO * error
        squared = error * error
        if clip > ZERO:
            moved = value[b, 0] - rows.value[b]
            held = rows.value[b] + min(max(moved, -clip), clip) - rows.returns[b]
            if held * held > squared:
                squared = held * held
                slope = TWO * held if abs(moved) < clip else ZERO
        parts[b] = weight * squared
        d[b] = share * slope


@fast
def gradients(rows, rules, actor, critic, size, curved, parts):
    """Compute losses and gradients of both networks on one minibatch. Return True, without them, if
    the policy is too far from the one that acted."""
    count = rows.log_prob.size
    outputs = actor.layers[actor.layers.size - 1]
    if rules.normalise[0] > 0.0:
        normalise(rows.advantage)
    clip, weight = np.float32(rules.clip[0]), np.float32(rules.entropy[0])

    z = forward(actor.params[:size], actor.layers, rows.obs, actor.acts, curved)
    if beyond(rules.target_kl, rows, z, actor.params[size:], rules.choices, parts):
        return True
    d = actor.deltas[: count * outputs].reshape(count, outputs)
    policy_loss(
        rows.action, z, actor.params[size:], rows, clip, weight, d, actor.grad[size:], parts,
        rules.choices,
    )  # fmt: skip
    actor.loss[0] = total(parts) / np.float32(count)
    backward(
        actor.params[:size], actor.layers, rows.obs, actor.acts, count, count, actor.deltas,
        actor.grad[:size], np.int64(0), rows.obs, curved,
    )  # fmt: skip

    value = forward(critic.params, critic.layers, rows.obs, critic.acts, curved)
    value_loss(
        value, rows, np.float32(rules.value_clip[0]), np.float32(rules.value_weight[0]),
        critic.deltas, parts,
    )  # fmt: skip
    critic.loss[0] = total(parts) / np.float32(count)
    backward(
        critic.params, critic.layers, rows.obs, critic.acts, count, count, critic.deltas,
        critic.grad, np.int64(0), rows.obs, curved,
    )  # fmt: skip

    return False


@fast_apart
def update(rollout, unit, rules, actor, critic, size, curved, rows, order, epochs, parts):
    """Take all gradient steps of one rollout. rows: a minibatch; order: one number per rollout row;
    size: number of the actor's weights and biases, which its deviations follow."""
    base, before, batch = stream_base(rules.rng[0], rules.rng[1]), rules.stop[1], parts.size
    done = np.float64(rules.count[0] - before)
    share = anneal(done, rules.anneal[0])
    for r in range(order.size):
        order[r] = r
    each = (order.size + batch - 1) // batch
    for epoch in range(epochs):
        if batch < order.size:
            shuffle(base, epoch, order)
        for number in range(max(before - epoch * each, 0), each):
            gather(rollout, unit, order[number * batch : (number + 1) * batch], rows)
            far = gradients(rows, rules, actor, critic, size, curved, parts)
            if not far:
                move(rules, share, done, actor, critic)
            else:
                rules.count[0] = np.int64(done) + epochs * each
                rules.stop[1] = 0
            if far or call_ends(rules.stop, epoch * each + number + 1, epochs * each):
                if not is_under_way(rules.stop):
                    rules.rng[1] += np.uint64(1)
                return


def rows_of(buffers: Buffers) -> Rows:
    """Return the whole rollout as rows in a row, time first."""
    found = []
    for name in Rows._fields:
        array = buffers[f"rollout.{name}"]
        found.append(array.reshape(-1, *array.shape[2:]))
    return Rows._make(found)


def minibatch(rollout: Rows, rows: int) -> Rows:
    """Return scratch for so many rows of a rollout; its observations are float32."""
    made = Rows._make(np.zeros((rows, *array.shape[1:]), array.dtype) for array in rollout)
    return made._replace(obs=np.zeros(made.obs.shape, np.float32))


def rules_of(buffers: Buffers) -> PpoRules:
    names = (
        "learner.step", "rng.update", "hyper.adam", "hyper.rmsprop", "hyper.anneal",
        "hyper.clip_norm", "hyper.clip", "hyper.value_clip", "hyper.entropy",
        "hyper.value_weight", "hyper.normalise",
    )  # fmt: skip
    stop = buffers.get("loop.stop", np.zeros(2, np.int64))
    given = (stop, *(buffers[name] for name in names), buffers.get("hyper.target_kl"))
    return PpoRules._make((*given, buffers.get("act.choices", np.zeros(0, np.int64))))


def update_arguments(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    """Return the arguments of `update`."""
    rollout, batch = rows_of(buffers), kernel.dim("batch")
    actor = critics.net_of("actor", kernel, buffers)
    return (
        rollout,
        unit_of(kernel),
        rules_of(buffers),
        actor,
        critics.net_of("critic", kernel, buffers),
        parameters(kernel.layers("actor")),
        bool(kernel.dim("tanh")),
        minibatch(rollout, batch),
        np.zeros(rollout.returns.size, np.int64),
        kernel.dim("epochs"),
        np.zeros(batch, np.float32),
    )


def bind_update(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind update.ppo or update.a2c: all epochs and minibatches of one rollout.*, in one call."""
    return bind_call(update, *update_arguments(kernel, buffers))
