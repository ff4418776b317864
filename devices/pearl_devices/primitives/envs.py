"""Batched CartPole and Pendulum with the dynamics of gymnasium's own, in float64 without
reordering.

CartPole: Barto, Sutton, Anderson 1983, as in gymnasium's `cartpole.py` (explicit Euler). Pendulum:
as in gymnasium's `pendulum.py`, where the torque is float32. An episode that ends is reset in the
same firing: `step.next_obs` is the true successor, `env.obs` the observation after the reset.
"""

from __future__ import annotations

import math

import numpy as np

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.buffers import EPISODES
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.native import bound, exact
from pearl_devices.primitives.rng import stream, uniform

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, CART_STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL_KG = POLE_KG + CART_KG
POLE_KG_M = POLE_KG * HALF_POLE_M
ANGLE_LIMIT = 12 * 2 * math.pi / 360
TRACK_LIMIT_M = 2.4
PENDULUM_GRAVITY, PENDULUM_STEP_S, SPEED_LIMIT, TORQUE_LIMIT = 10.0, 0.05, 8.0, 2.0
TWO_PI = 2.0 * math.pi


@exact
def cartpole_reset(state, n, base):
    for j in range(4):
        state[n, j] = -0.05 + 0.1 * uniform(base, 4 * n + j)


@exact
def cartpole_step(state, n, action):
    """Moves environment n on by one step; True if the pole fell or the cart left the track."""
    x, x_dot, angle, angle_dot = state[n, 0], state[n, 1], state[n, 2], state[n, 3]
    force = FORCE_N if action == 1 else -FORCE_N
    cosine, sine = math.cos(angle), math.sin(angle)
    temp = (force + POLE_KG_M * (angle_dot * angle_dot) * sine) / TOTAL_KG
    angle_acc = (GRAVITY * sine - cosine * temp) / (
        HALF_POLE_M * (4.0 / 3.0 - POLE_KG * (cosine * cosine) / TOTAL_KG)
    )
    x_acc = temp - POLE_KG_M * angle_acc * cosine / TOTAL_KG
    x = x + CART_STEP_S * x_dot
    angle = angle + CART_STEP_S * angle_dot
    state[n, 0] = x
    state[n, 1] = x_dot + CART_STEP_S * x_acc
    state[n, 2] = angle
    state[n, 3] = angle_dot + CART_STEP_S * angle_acc
    return abs(x) > TRACK_LIMIT_M or abs(angle) > ANGLE_LIMIT


@exact
def cartpole_observe(state, n, out):
    for j in range(4):
        out[n, j] = state[n, j]


@exact
def pendulum_reset(state, n, base):
    state[n, 0] = -math.pi + TWO_PI * uniform(base, 2 * n)
    state[n, 1] = -1.0 + 2.0 * uniform(base, 2 * n + 1)


@exact
def pendulum_step(state, n, torque):
    """Moves environment n on by one step under a float32 torque; returns the float64 reward."""
    limit = np.float32(TORQUE_LIMIT)
    u = min(max(torque, -limit), limit)
    angle, speed = state[n, 0], state[n, 1]
    upright = ((angle + math.pi) % TWO_PI) - math.pi
    cost = upright * upright + 0.1 * (speed * speed) + np.float32(0.001) * (u * u)
    push = np.float32(3.0) * u
    speed = speed + (3 * PENDULUM_GRAVITY / 2.0 * math.sin(angle) + push) * PENDULUM_STEP_S
    speed = min(max(speed, -SPEED_LIMIT), SPEED_LIMIT)
    state[n, 0] = angle + speed * PENDULUM_STEP_S
    state[n, 1] = speed
    return -cost


@exact
def pendulum_observe(state, n, out):
    out[n, 0] = math.cos(state[n, 0])
    out[n, 1] = math.sin(state[n, 0])
    out[n, 2] = state[n, 1]


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
def step_cartpole(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, step_limit,
):  # fmt: skip
    rng[1] += np.uint64(1)
    base = stream(rng[0], rng[1])
    s_obs[:] = obs
    s_action[:] = action
    for n in range(state.shape[0]):
        fell = cartpole_step(state, n, action[n])
        cartpole_observe(state, n, s_next)
        elapsed[n] += 1
        late = elapsed[n] >= step_limit
        s_reward[n] = 1.0
        s_terminated[n] = fell
        s_truncated[n] = late
        record(n, 1.0, fell or late, env_return, elapsed, returns, lengths, count)
        if fell or late:
            cartpole_reset(state, n, base)
        cartpole_observe(state, n, obs)


@exact
def step_pendulum(
    rng, action, obs, state, elapsed, env_return, returns, lengths, count,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated, step_limit,
):  # fmt: skip
    rng[1] += np.uint64(1)
    base = stream(rng[0], rng[1])
    s_obs[:] = obs
    s_action[:] = action
    for n in range(state.shape[0]):
        reward = pendulum_step(state, n, action[n, 0])
        pendulum_observe(state, n, s_next)
        elapsed[n] += 1
        late = elapsed[n] >= step_limit
        s_reward[n] = reward
        s_terminated[n] = False
        s_truncated[n] = late
        record(n, reward, late, env_return, elapsed, returns, lengths, count)
        if late:
            pendulum_reset(state, n, base)
        pendulum_observe(state, n, obs)


NATIVE = {
    "CartPole-v1": (step_cartpole, cartpole_reset, cartpole_observe),
    "Pendulum-v1": (step_pendulum, pendulum_reset, pendulum_observe),
}


def reset_envs(program: str, buffers: Buffers) -> None:
    """Starts all environments from the stream of rng.env_step at firing 0, no step done."""
    _, reset, observe = NATIVE[program]
    base = np.uint64(stream(buffers["rng.env_step"][0], np.uint64(0)))
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
    if buffers["rng.env_step"][1] == 0:
        reset_envs(program, buffers)
    names = (
        "rng.env_step", "act.action", "env.obs", "env.state", "env.elapsed", "env.return",
        "episode.returns", "episode.lengths", "episode.count", "step.obs", "step.action",
        "step.reward", "step.next_obs", "step.terminated", "step.truncated",
    )  # fmt: skip
    return bound(NATIVE[program][0], *(buffers[name] for name in names), sizes.step_limit)
