"""Batched native environments: gymnasium's classic control, with the dynamics of `classic`.

If an episode ends, by termination or at the time limit, the same firing resets the environment:
`step.next_obs` is the true successor, and `env.obs` the observation after the reset. An episode
that ends both ways is marked as both.

First states come from the random stream of the firing, keyed by (seed, task, firing, environment),
not from gymnasium's generators. So the bits of a run do not depend on how its firings are grouped
and placed or where it was resumed, and a checkpoint needs only the arrays. The distributions are
those of gymnasium. The tests replay gymnasium's own episodes: they write its first states into
`env.state` and `env.obs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import EPISODES
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs.classic import DYNAMICS
from pearl_devices.primitives.envs.normalise import with_normalisation
from pearl_devices.primitives.math.rng import stream_base
from pearl_devices.primitives.native import ELEMENTWISE, bind_call, fast, fast_apart, rename
from pearl_devices.primitives.parts import PART


@fast
def record(n, reward, done, env_return, elapsed, returns, lengths, count):
    """Add a reward to the running episode; at its end, write it to the ring and clear it."""
    env_return[n] += reward
    if done:
        slot = count[0] % EPISODES
        returns[slot] = env_return[n]
        lengths[slot] = elapsed[n]
        count[0] += 1
        env_return[n] = 0.0
        elapsed[n] = 0


@fast
def begin(rng, action, obs, step):
    """Write observations and actions before the step; return the base of the random stream."""
    s_obs, s_action = step[0], step[1]
    rng[1] += np.uint64(1)
    # A loop over elements: numba needs two seconds to compile an assignment of whole arrays.
    for n in range(obs.shape[0]):
        for c in range(obs.shape[1]):
            s_obs[n, c] = obs[n, c]
    source, target = action.reshape(action.size), s_action.reshape(action.size)
    for j in range(source.size):
        target[j] = source[j]
    return stream_base(rng[0], rng[1])


@fast
def close(n, reward, terminated, limit, episodes, step):
    """Write reward and flags of environment n; return whether its episode is over."""
    elapsed, env_return, returns, lengths, count = episodes
    s_reward, s_terminated, s_truncated = step[2], step[4], step[5]
    elapsed[n] += 1
    timed_out = elapsed[n] >= limit
    s_reward[n] = reward
    s_terminated[n] = terminated
    s_truncated[n] = timed_out
    record(n, reward, terminated or timed_out, env_return, elapsed, returns, lengths, count)
    return terminated or timed_out


def _vector_step(name: str, program: str) -> Any:
    """Compile the vector step of an environment as the function `name` of this module.

    The step takes each array as a separate argument: the conversion of a tuple of arrays from
    Python would make a short call about half as long again.
    """
    move, observe, reset = DYNAMICS[program]

    def step(
        rng, action, obs, state, elapsed, env_return, returns, lengths, count,
        s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, limit,
    ):  # fmt: skip
        episodes = (elapsed, env_return, returns, lengths, count)
        transition = (s_obs, s_action, s_reward, s_next, s_terminated, s_truncated)
        base = begin(rng, action, obs, transition)
        chosen = action.reshape(action.size)
        for n in range(obs.shape[0]):
            reward, terminated = move(state, n, chosen[n])
            observe(state, n, s_next)
            if close(n, reward, terminated, limit, episodes, transition):
                reset(state, n, base)
            observe(state, n, obs)

    return fast_apart(rename(name, step))


# Cached machine code finds a separately compiled function by the name that it has in this module.
step_cartpole = _vector_step("step_cartpole", "CartPole-v1")
step_pendulum = _vector_step("step_pendulum", "Pendulum-v1")
step_acrobot = _vector_step("step_acrobot", "Acrobot-v1")
step_mountain_car = _vector_step("step_mountain_car", "MountainCar-v0")
step_mountain_car_continuous = _vector_step(
    "step_mountain_car_continuous", "MountainCarContinuous-v0"
)

VECTOR_STEPS = {
    "CartPole-v1": step_cartpole,
    "Pendulum-v1": step_pendulum,
    "Acrobot-v1": step_acrobot,
    "MountainCar-v0": step_mountain_car,
    "MountainCarContinuous-v0": step_mountain_car_continuous,
}
"""Environment id → its vector step."""

OPTIONS: Any = ELEMENTWISE | PART
"""Options of `overload`; numba has no public name for their type."""


def environment_mark(program: str) -> tuple[int, ...]:
    """Return the argument by which compiled code knows an environment: a tuple of zeros.

    The length of a tuple is part of its type. So each environment compiles its own code, which
    contains no other environment.
    """
    return (0,) * (1 + list(DYNAMICS).index(program))


def marked_program(env: Any) -> str:
    """Return the environment id of a mark (`environment_mark`), or of the type of a mark."""
    return list(DYNAMICS)[len(env) - 1]


def step(env, arguments):
    """Do a vector step of the environment with mark `env`. For compiled callers only."""
    _step(env, arguments)(env, arguments)


@overload(step, jit_options=OPTIONS)
def _step(env, arguments):
    chosen = VECTOR_STEPS[marked_program(env)]

    def call(env, arguments):
        chosen(*arguments)

    return call


def reset_envs(program: str, buffers: Buffers, firing: int = 0) -> None:
    """Start an episode in every environment, from the stream of rng.env_step at a firing.

    The number of firings done does not change.
    """
    dynamics = DYNAMICS[program]
    base = np.uint64(stream_base(buffers["rng.env_step"][0], np.uint64(firing)))
    for n in range(buffers["env.obs"].shape[0]):
        dynamics.reset(buffers["env.state"], n, base)
        dynamics.observe(buffers["env.state"], n, buffers["env.obs"])
    buffers["env.elapsed"][:] = 0
    buffers["env.return"][:] = 0.0


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind env_step, native. Reset all environments if rng.env_step counts no firing.

    The buffers hold the whole state of the environments, so a run resumes exactly.

    Raises:
        UnsupportedError: The environment has no native variant, or other sizes than the kernel.
    """
    program = str(kernel.program)
    sizes = NATIVE_ENVS.get(program)
    if sizes is None or kernel.args:
        raise UnsupportedError(
            f"kernel {kernel.kind}: {program!r} with arguments {dict(kernel.args)} has no native "
            f"variant; there are {sorted(NATIVE_ENVS)}, without arguments"
        )
    kernel_sizes = (kernel.dim("obs"), kernel.dim("act"))
    if kernel_sizes != (sizes.obs, sizes.act):
        raise UnsupportedError(
            f"kernel {kernel.kind}: {program} has (obs, act) = {(sizes.obs, sizes.act)}, "
            f"the kernel has {kernel_sizes}"
        )
    fresh = buffers["rng.env_step"][1] == 0
    if fresh:
        reset_envs(program, buffers)
    episodes = ("env.elapsed", "env.return", "episode.returns", "episode.lengths", "episode.count")
    step = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    call = bind_call(
        VECTOR_STEPS[program],
        buffers["rng.env_step"],
        buffers["act.action"],
        buffers["env.obs"],
        buffers["env.state"],
        *(buffers[name] for name in episodes),
        *(buffers[f"step.{name}"] for name in step),
        sizes.step_limit,
    )
    return with_normalisation(kernel, buffers, call, fresh=bool(fresh))
