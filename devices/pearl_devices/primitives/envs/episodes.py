"""Greedy episodes of native environments and networks, in lock-step, as one compiled function.

First states equal those of gymnasium's `reset(seed=…)`. So with the same actions, gymnasium plays
the same episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.evaluation import acting
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs.classic import DYNAMICS
from pearl_devices.primitives.envs.evaluations import Evaluations
from pearl_devices.primitives.envs.native_envs import OPTIONS, environment_mark, marked_program
from pearl_devices.primitives.envs.normalise import scale
from pearl_devices.primitives.math.nets import forward, scratch
from pearl_devices.primitives.native import bind_call, fast, pick_by_action

HALF = np.float32(0.5)

First = Callable[[np.random.Generator], Sequence[float] | npt.NDArray[Any]]


def _angle_and_speed(random: np.random.Generator) -> npt.NDArray[Any]:
    high = np.array([np.pi, 1.0])
    return random.uniform(-high, high)


def _hill(random: np.random.Generator) -> Sequence[float]:
    return [random.uniform(-0.6, -0.4), 0.0]


FIRST_STATES: dict[str, First] = {
    "CartPole-v1": lambda r: r.uniform(-0.05, 0.05, 4),
    "Pendulum-v1": _angle_and_speed,
    "Acrobot-v1": lambda r: r.uniform(-0.1, 0.1, 4).astype(np.float32),
    "MountainCar-v0": _hill,
    "MountainCarContinuous-v0": _hill,
}
"""Environment id → its first state, drawn as in gymnasium."""


def move(env, state, n, action):
    """Advance environment n by one step; return (reward, terminated). For compiled callers only."""
    return _move(env, state, n, action)(env, state, n, action)


@overload(move, jit_options=OPTIONS)
def _move(env, state, n, action):
    chosen = DYNAMICS[marked_program(env)].move
    if action.ndim == 1:
        return lambda env, state, n, action: chosen(state, n, action[n])
    return lambda env, state, n, action: chosen(state, n, action[n, 0])


def observe(env, state, n, out):
    """Write row n of the observations. For compiled callers only."""
    return _observe(env, state, n, out)(env, state, n, out)


@overload(observe, jit_options=OPTIONS)
def _observe(env, state, n, out):
    chosen = DYNAMICS[marked_program(env)].observe
    return lambda env, state, n, out: chosen(state, n, out)


class Greedy(NamedTuple):
    """A policy.

    first: outputs before those of the actions.
    clipped: actions are clipped outputs instead of their tanh.
    statistics: mean and variance, (2, O), or (2, 0) without normalisation.
    options: as `normalise.options`."""

    params: Any
    layers: Any
    acts: Any
    curved: bool
    first: int
    clipped: bool
    low: Any
    high: Any
    statistics: Any
    options: Any


class Playing(NamedTuple):
    """Running episodes; playing rows come first. shown: `obs` as the network gets it."""

    action: Any
    obs: Any
    shown: Any
    state: Any
    episode: Any
    elapsed: Any
    total: Any


class Episodes(NamedTuple):
    """All episodes.

    at: playing rows; episodes begun.
    limit: the environment's own step limit.
    most: steps after which an episode is cut."""

    first: Any
    returns: Any
    cut: Any
    at: Any
    limit: int
    most: int


@fast
def choose_discrete(action, out, policy):
    for n in range(out.shape[0]):
        best = policy.first
        for j in range(policy.first + 1, out.shape[1]):
            if out[n, j] > out[n, best]:
                best = j
        action[n] = best - policy.first


@fast
def choose_continuous(action, out, policy):
    for n in range(out.shape[0]):
        for c in range(action.shape[1]):
            low, high = policy.low[c], policy.high[c]
            half = HALF * (high - low)
            if policy.clipped:
                action[n, c] = min(max(low + half + half * out[n, c], low), high)
            else:
                action[n, c] = low + half + half * np.float32(math.tanh(np.float64(out[n, c])))


choose = pick_by_action(choose_discrete, choose_continuous, choose_discrete)
"""No native environment has factored actions."""


@fast
def start(env, rows, episodes, n):
    """Begin the next episode in row n."""
    episode = episodes.at[1]
    episodes.at[1] = episode + 1
    for c in range(rows.state.shape[1]):
        rows.state[n, c] = episodes.first[episode, c]
    rows.episode[n], rows.elapsed[n], rows.total[n] = episode, 0, 0.0
    observe(env, rows.state, n, rows.obs)


@fast
def begin(env, rows, episodes):
    """Begin an episode in every row."""
    episodes.at[0], episodes.at[1] = rows.episode.size, 0
    for n in range(rows.episode.size):
        start(env, rows, episodes, n)


@fast
def take(rows, n, other):
    """Overwrite row n with row `other`, whose action is chosen and not yet done."""
    for c in range(rows.state.shape[1]):
        rows.state[n, c] = rows.state[other, c]
    for c in range(rows.action.size // rows.episode.size):
        width = rows.action.size // rows.episode.size
        flat = rows.action.reshape(rows.action.size)
        flat[n * width + c] = flat[other * width + c]
    rows.episode[n], rows.elapsed[n] = rows.episode[other], rows.elapsed[other]
    rows.total[n] = rows.total[other]


@fast
def play(env, policy, rows, episodes, steps):
    """Play `steps` vector steps, or fewer if all episodes end."""
    width = rows.obs.shape[1]
    for _ in range(steps):
        playing = episodes.at[0]
        if playing == 0:
            return
        source = rows.obs
        if policy.statistics.size > 0:
            source = rows.shown
            for n in range(playing):
                scale(rows.obs, n, policy.statistics, policy.options, rows.shown)
        seen = source.reshape(source.size)[: playing * width].reshape(playing, width)
        out = forward(policy.params, policy.layers, seen, policy.acts, policy.curved)
        choose(rows.action, out, policy)
        n = 0
        while n < playing:
            reward, terminated = move(env, rows.state, n, rows.action)
            rows.total[n] += reward
            rows.elapsed[n] += 1
            over = terminated or rows.elapsed[n] >= episodes.limit
            if over or rows.elapsed[n] >= episodes.most:
                episodes.returns[rows.episode[n]] = rows.total[n]
                episodes.cut[rows.episode[n]] = not over
                if episodes.at[1] < episodes.returns.size:
                    start(env, rows, episodes, n)
                else:
                    playing -= 1
                    take(rows, n, playing)
                    continue
            else:
                observe(env, rows.state, n, rows.obs)
            n += 1
        episodes.at[0] = playing


class NativeEpisodes(Evaluations):
    """A bound evaluation whose whole state lies in the arrays."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        super().__init__(kernel, buffers)
        self._first, self._draw = buffers["evaluation.first"], FIRST_STATES[str(kernel.program)]
        none, of = np.zeros(0, np.float32), acting(kernel)
        n, act, layers = kernel.dim("envs"), kernel.dim("act"), kernel.layers()
        env, obs = environment_mark(str(kernel.program)), buffers["evaluation.obs"]
        policy = Greedy(
            buffers["evaluation.policy"],
            np.array(layers, np.int64),
            scratch(layers, n)[0],
            bool(kernel.dims.get("tanh")),
            kernel.dim("duelling") if "duelling" in kernel.dims else 0,
            "act.sample" in kind_of(of).arrays(of),
            buffers.get("act.low", none),
            buffers.get("act.high", none),
            buffers.get("evaluation.statistics", np.zeros((2, 0))),
            buffers.get("normalise.options", np.zeros(3)),
        )
        state, episode, elapsed, total = (
            buffers[f"evaluation.{name}"] for name in ("state", "episode", "elapsed", "return")
        )
        action = np.zeros((n, act), np.float32) if act else np.zeros(n, np.int64)
        rows = Playing(action, obs, np.zeros_like(obs), state, episode, elapsed, total)
        episodes = Episodes(
            self._first,
            buffers["evaluation.returns"],
            buffers["evaluation.cut"],
            buffers["evaluation.at"],
            NATIVE_ENVS[str(kernel.program)].step_limit,
            kernel.dim("max_steps"),
        )
        self._begin = bind_call(begin, env, rows, episodes)
        self._play: Any = bind_call(play, env, policy, rows, episodes, 1)

    def reset(self, seeds: Sequence[int]) -> None:
        self._first[:] = 0.0
        for row, seed in zip(self._first, seeds, strict=True):
            state = self._draw(np.random.Generator(np.random.PCG64(seed)))
            row[: len(state)] = state
        self._begin()

    def play(self, steps: int) -> None:
        self._play.func(*self._play.args[:-1], steps)


def bind(kernel: Kernel, buffers: Buffers) -> NativeEpisodes:
    """Bind the kernel evaluation, native."""
    return NativeEpisodes(kernel, buffers)
