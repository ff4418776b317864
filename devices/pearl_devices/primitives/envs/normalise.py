"""Running normalisation of observations and rewards, as gymnasium's NormalizeObservation and
NormalizeReward do it, on the output of an env_step. It computes in float64, from what the
environments gave: float32 cannot tell two time stamps of one minute apart.

Mean and variance of a batch join the running ones by the update of Chan, Golub and LeVeque (1983).
The true successors of a firing are one batch of observations; the first observations of its new
episodes are another. Rewards are divided by the standard deviation of the discounted return, which
is reset after a termination. Both are clipped; gymnasium has separate wrappers for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.native import bind_call, fast

Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]

FIRST_COUNT = 1e-4
"""Weight of the first mean 0 and variance 1, as in gymnasium."""


@fast
def join(stats, column, count, mean, variance, rows):
    """Join stats (2, …), mean and variance of `count` values, with those of `rows` more values."""
    total = count + rows
    delta = mean - stats[0, column]
    moved = stats[1, column] * count + variance * rows + delta * delta * count * rows / total
    stats[0, column] += delta * rows / total
    stats[1, column] = moved / total


@fast
def take_in(obs, only, stats, count):
    """Join the rows of obs (N, O) that `only` (N) marks into the statistics, all columns."""
    rows = 0
    for n in range(obs.shape[0]):
        rows += only[n] != 0
    if rows == 0:
        return
    for c in range(obs.shape[1]):
        mean = 0.0
        for n in range(obs.shape[0]):
            if only[n] != 0:
                mean += np.float64(obs[n, c])
        mean /= rows
        variance = 0.0
        for n in range(obs.shape[0]):
            if only[n] != 0:
                variance += (np.float64(obs[n, c]) - mean) ** 2
        join(stats, c, count[0], mean, variance / rows, rows)
    count[0] += rows


@fast
def clip(value, limit):
    return min(max(value, -limit), limit) if limit > 0.0 else value


@fast
def scale(obs, n, stats, options, out):
    """Row n of out ← (row n of obs − mean) / standard deviation."""
    for c in range(obs.shape[1]):
        deviation = math.sqrt(stats[1, c] + options[1])
        out[n, c] = clip((np.float64(obs[n, c]) - stats[0, c]) / deviation, options[0])


@fast
def first_observations(raw, obs, stats, count, options, only):
    """Normalise env.obs (N, O) of new episodes. raw: as the environments gave it."""
    take_in(raw, only, stats, count)
    for n in range(obs.shape[0]):
        scale(raw, n, stats, options, obs)


@fast
def observations(raw, raw_next, obs, next_obs, terminated, truncated, stats, count, options, only):
    """Normalise step.next_obs and env.obs of one firing. only (N): scratch.

    raw, raw_next: as the environments gave them; they may be `obs` and `next_obs` themselves."""
    only[:] = 1
    take_in(raw_next, only, stats, count)
    for n in range(obs.shape[0]):
        scale(raw_next, n, stats, options, next_obs)
        only[n] = terminated[n] or truncated[n]
    take_in(raw, only, stats, count)
    for n in range(obs.shape[0]):
        if only[n]:
            scale(raw, n, stats, options, obs)
        else:
            for c in range(obs.shape[1]):
                obs[n, c] = next_obs[n, c]


@fast
def rewards(reward, terminated, returns, stats, count, options):
    """Normalise step.reward of one firing, in place. returns (N): running discounted returns."""
    envs = reward.size
    mean = 0.0
    for n in range(envs):
        kept = 0.0 if terminated[n] else options[2] * returns[n]
        returns[n] = kept + np.float64(reward[n])
        mean += returns[n]
    mean /= envs
    variance = 0.0
    for n in range(envs):
        variance += (returns[n] - mean) ** 2
    join(stats, 0, count[0], mean, variance / envs, envs)
    count[0] += envs
    deviation = math.sqrt(stats[1, 0] + options[1])
    for n in range(envs):
        reward[n] = clip(np.float64(reward[n]) / deviation, options[0])


def initialise(buffers: Buffers, *, clip: float, epsilon: float, discount: float) -> None:
    """Write first values to those of the arrays normalise.* that exist."""
    for name in ("obs", "reward"):
        if f"normalise.{name}" in buffers:
            buffers[f"normalise.{name}"][:] = [[0.0], [1.0]]
            buffers[f"normalise.{name}.count"][0] = FIRST_COUNT
            buffers["normalise.options"][:] = clip, epsilon, discount


@dataclass(frozen=True)
class Sequence:
    """Calls in a row, as one call."""

    calls: list[Call]

    def __call__(self) -> None:
        for call in self.calls:
            call()


def with_normalisation(
    kernel: Kernel,
    buffers: Buffers,
    step: Call,
    *,
    fresh: bool,
    raw: tuple[Array, Array] | None = None,
) -> Call:
    """Return the bound env_step `step`, followed by the normalisation that the kernel asks for.

    fresh: there are first observations from the environments, not yet scaled.
    raw: where `step` writes observations and true successors before normalisation, float64; None:
        to env.obs and step.next_obs.
    """
    calls = [step]
    names = ("step.next_obs", "step.terminated", "step.truncated")
    if kernel.dims.get("normalise_obs"):
        only = np.ones(kernel.dim("envs"), np.uint8)
        state = [buffers[n] for n in ("normalise.obs", "normalise.obs.count", "normalise.options")]
        obs = buffers["env.obs"]
        raw = raw or (obs, buffers["step.next_obs"])
        if fresh:
            first_observations(raw[0], obs, *state, only)
        step_arrays = [buffers[n] for n in names]
        calls.append(bind_call(observations, *raw, obs, *step_arrays, *state, only))
    if kernel.dims.get("normalise_reward"):
        rest = ("return", "reward", "reward.count", "options")
        state = [buffers[f"normalise.{n}"] for n in rest]
        calls.append(bind_call(rewards, buffers["step.reward"], buffers["step.terminated"], *state))
    if len(calls) == 1:
        return step

    return Sequence(calls)
