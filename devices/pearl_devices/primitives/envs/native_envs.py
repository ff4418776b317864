"""Batched native environments: gymnasium's classic control, with the dynamics of `classic`.

An episode that ends, by termination or at the time limit, is reset in the same firing:
`step.next_obs` is the true successor, `env.obs` the observation after the reset. An episode that
ends both ways is marked as both.

First states come from this firing's random stream, keyed by (seed, task, firing, environment), not
from gymnasium's generators: so a run gives the same bits however its firings are grouped, placed
or resumed, and nothing but the arrays needs saving. The distributions are gymnasium's; its own
sequence of episodes follows by writing its first states into `env.state` and `env.obs` (`observe`),
which is how the tests compare whole episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import EPISODES
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs.classic import (
    acrobot_move,
    acrobot_observe,
    acrobot_reset,
    cartpole_move,
    cartpole_observe,
    cartpole_reset,
    mountain_car_continuous_move,
    mountain_car_move,
    mountain_car_observe,
    mountain_car_reset,
    pendulum_move,
    pendulum_observe,
    pendulum_reset,
)
from pearl_devices.primitives.envs.normalise import normalised
from pearl_devices.primitives.math.rng import stream
from pearl_devices.primitives.native import ELEMENTWISE, bound, exact, exact_apart
from pearl_devices.primitives.parts import PART


@exact
def record(n, reward, done, env_return, elapsed, returns, lengths, count):
    """Adds a reward to the running episode; at its end notes it in the ring and starts anew."""
    env_return[n] += reward
    if done:
        slot = count[0] % EPISODES
        returns[slot] = env_return[n]
        lengths[slot] = elapsed[n]
        count[0] += 1
        env_return[n] = 0.0
        elapsed[n] = 0


@exact
def begin(rng, action, obs, step):
    """Notes what the step starts from; returns the base of this firing's random stream."""
    s_obs, s_action = step[0], step[1]
    rng[1] += np.uint64(1)
    # Element by element: numba's assignment of whole arrays takes two seconds to compile.
    for n in range(obs.shape[0]):
        for c in range(obs.shape[1]):
            s_obs[n, c] = obs[n, c]
    chosen, noted = action.reshape(action.size), s_action.reshape(action.size)
    for j in range(chosen.size):
        noted[j] = chosen[j]
    return stream(rng[0], rng[1])


@exact
def close(n, reward, terminated, limit, episodes, step):
    """Writes reward and flags of environment n; True if its episode is over."""
    elapsed, env_return, returns, lengths, count = episodes
    s_reward, s_terminated, s_truncated = step[2], step[4], step[5]
    elapsed[n] += 1
    late = elapsed[n] >= limit
    s_reward[n] = reward
    s_terminated[n] = terminated
    s_truncated[n] = late
    record(n, reward, terminated or late, env_return, elapsed, returns, lengths, count)
    return terminated or late


@exact_apart
def step_cartpole(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
):  # fmt: skip
    episodes = (elapsed, env_return, returns, lengths, count)
    step = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
    base = begin(rng, action, obs, step)
    for n in range(obs.shape[0]):
        reward, terminated = cartpole_move(state, n, action[n])
        cartpole_observe(state, n, step[3])
        if close(n, reward, terminated, limit, episodes, step):
            cartpole_reset(state, n, base)
        cartpole_observe(state, n, obs)


@exact_apart
def step_pendulum(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
):  # fmt: skip
    episodes = (elapsed, env_return, returns, lengths, count)
    step = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
    base = begin(rng, action, obs, step)
    for n in range(obs.shape[0]):
        reward, terminated = pendulum_move(state, n, action[n, 0])
        pendulum_observe(state, n, step[3])
        if close(n, reward, terminated, limit, episodes, step):
            pendulum_reset(state, n, base)
        pendulum_observe(state, n, obs)


@exact_apart
def step_acrobot(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
):  # fmt: skip
    episodes = (elapsed, env_return, returns, lengths, count)
    step = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
    base = begin(rng, action, obs, step)
    for n in range(obs.shape[0]):
        reward, terminated = acrobot_move(state, n, action[n])
        acrobot_observe(state, n, step[3])
        if close(n, reward, terminated, limit, episodes, step):
            acrobot_reset(state, n, base)
        acrobot_observe(state, n, obs)


@exact_apart
def step_mountain_car(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
):  # fmt: skip
    episodes = (elapsed, env_return, returns, lengths, count)
    step = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
    base = begin(rng, action, obs, step)
    for n in range(obs.shape[0]):
        reward, terminated = mountain_car_move(state, n, action[n])
        mountain_car_observe(state, n, step[3])
        if close(n, reward, terminated, limit, episodes, step):
            mountain_car_reset(state, n, base)
        mountain_car_observe(state, n, obs)


@exact_apart
def step_mountain_car_continuous(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
):  # fmt: skip
    episodes = (elapsed, env_return, returns, lengths, count)
    step = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
    base = begin(rng, action, obs, step)
    for n in range(obs.shape[0]):
        reward, terminated = mountain_car_continuous_move(state, n, action[n, 0])
        mountain_car_observe(state, n, step[3])
        if close(n, reward, terminated, limit, episodes, step):
            mountain_car_reset(state, n, base)
        mountain_car_observe(state, n, obs)


NATIVE = {
    "CartPole-v1": (step_cartpole, cartpole_reset, cartpole_observe),
    "Pendulum-v1": (step_pendulum, pendulum_reset, pendulum_observe),
    "Acrobot-v1": (step_acrobot, acrobot_reset, acrobot_observe),
    "MountainCar-v0": (step_mountain_car, mountain_car_reset, mountain_car_observe),
    "MountainCarContinuous-v0": (
        step_mountain_car_continuous,
        mountain_car_reset,
        mountain_car_observe,
    ),
}


OPTIONS: Any = ELEMENTWISE | PART  # of `overload`, which names their type nowhere public


def marked(program: str) -> tuple[int, ...]:
    """What `step` calls this environment: a tuple whose length says which. It is part of its type,
    so that compiled code holds no other environment."""
    return (0,) * (1 + list(NATIVE).index(program))


def step(env, arguments):
    """A vector step of the environment `marked` so; for compiled callers."""
    _step(env, arguments)(env, arguments)


@overload(step, jit_options=OPTIONS)
def _step(env, arguments):
    chosen = list(NATIVE.values())[len(env) - 1][0]

    def call(env, arguments):
        chosen(*arguments)

    return call


def reset_envs(program: str, buffers: Buffers, firing: int = 0) -> None:
    """Starts all environments from the stream of rng.env_step at a firing, no step done."""
    _, reset, observe = NATIVE[program]
    base = np.uint64(stream(buffers["rng.env_step"][0], np.uint64(firing)))
    for n in range(buffers["env.obs"].shape[0]):
        reset(buffers["env.state"], n, base)
        observe(buffers["env.state"], n, buffers["env.obs"])
    buffers["env.elapsed"][:] = 0
    buffers["env.return"][:] = 0.0


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """env_step, native. Resets all environments unless rng.env_step says that they have run before:
    everything they consist of lies in the buffers, so a run resumes exactly."""
    program = str(kernel.program)
    sizes = NATIVE_ENVS.get(program)
    if sizes is None or kernel.args:
        raise UnsupportedError(
            f"kernel {kernel.kind}: {program!r} with arguments {dict(kernel.args)} has no native "
            f"variant; there are {sorted(NATIVE_ENVS)}, without arguments"
        )
    given = (kernel.dim("obs"), kernel.dim("act"))
    if given != (sizes.obs, sizes.act):
        raise UnsupportedError(
            f"kernel {kernel.kind}: {program} has (obs, act) = {(sizes.obs, sizes.act)}, "
            f"the kernel says {given}"
        )
    fresh = buffers["rng.env_step"][1] == 0
    if fresh:
        reset_envs(program, buffers)
    episodes = ("env.elapsed", "env.return", "episode.returns", "episode.lengths", "episode.count")
    step = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    call = bound(
        NATIVE[program][0],
        buffers["rng.env_step"],
        buffers["act.action"],
        buffers["env.obs"],
        buffers["env.state"],
        *(buffers[name] for name in episodes),
        *(buffers[f"step.{name}"] for name in step),
        sizes.step_limit,
    )
    return normalised(kernel, buffers, call, fresh=bool(fresh))
