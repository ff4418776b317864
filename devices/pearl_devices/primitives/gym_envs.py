"""env_step on any gymnasium environment: an id, or `module:callable` that returns one.

A registered vector entry point is used where its episodes can be restarted in the firing in which
they end (it says so, or it is gymnasium's CartPole, whose state is restarted here); gymnasium steps
all others one after the other. So every firing gives exactly one true transition per environment,
and no reset is ever stored as one.

What resumes: the random key and the count of firings, hence which seeds come next. What does not:
the state inside the environments. A bind with rng.env_step[1] > 0 starts fresh episodes and marks
the newest stored rows as cut, so that no n-step return spans the gap; a resumed run is therefore
not bit-equal to one that was never interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.envs import record
from pearl_devices.primitives.replay import cut_episodes
from pearl_devices.primitives.rng import bits, stream

AnyEnv = VectorEnv[Any, Any, Any]
Array = npt.NDArray[Any]
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`module:callable`. A gymnasium id with a module has a version: `module:Name-v0`."""


def make(program: str, args: dict[str, Any], envs: int) -> AnyEnv:
    """`envs` copies of the environment; an UnsupportedError names a program that cannot be made."""
    same_step: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": False}
    try:
        if CALLABLE.fullmatch(program):
            module, _, name = program.partition(":")
            build: Callable[..., Any] = getattr(import_module(module), name)
            return SyncVectorEnv([lambda: build(**args)] * envs, **same_step)
        spec = gymnasium.spec(program)
        if spec.vector_entry_point is not None and not spec.additional_wrappers:
            env = gymnasium.make_vec(program, envs, vectorization_mode="vector_entry_point", **args)
            mode = env.metadata.get("autoreset_mode")
            if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED) or is_cartpole(env):
                return env
            env.close()
        if spec.entry_point is None:
            raise UnsupportedError(
                f"environment {program!r} has only a vector entry point, and that one spends a "
                "step on each reset; such steps are no transitions and cannot be used"
            )
        return gymnasium.make_vec(
            program, envs, vectorization_mode="sync", vector_kwargs=same_step, **args
        )
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedError(
            f"environment {program!r} with arguments {args} cannot be made: {error}"
        ) from error


def is_cartpole(env: AnyEnv) -> bool:
    """Whether this is gymnasium's own batched CartPole, whose arrays hold all of its state."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    held = ("state", "steps", "prev_done", "low", "high")
    known = isinstance(env.unwrapped, CartPoleVectorEnv)
    return known and all(hasattr(env.unwrapped, name) for name in held)


def restart_cartpole(env: Any, ended: Array, obs: Array) -> None:
    """Restarts the environments `ended` as its own next step would, and clears its mark for it."""
    count = int(ended.sum())
    env.state[:, ended] = env.np_random.uniform(env.low, env.high, size=(4, count))
    env.steps[ended] = 0
    env.prev_done[ended] = False
    obs[ended] = env.state[:, ended].T


def seeds(buffers: Buffers, envs: int) -> list[int]:
    """One seed an environment, from the key and the firings done."""
    rng = buffers["rng.env_step"]
    base = np.uint64(stream(rng[0], rng[1]))
    return [int(bits(base, n)) >> 33 for n in range(envs)]


class GymnasiumStep:
    """A bound env_step: steps a vector environment and writes the transition to step.*."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        self.name, self.envs = str(kernel.program), kernel.dim("envs")
        self.env = make(self.name, dict(kernel.args), self.envs)
        self.buffers = buffers
        self.obs_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space
        self.mode = self.env.metadata.get("autoreset_mode")
        self.cartpole = is_cartpole(self.env)
        self._check_sizes(kernel)
        numbers = seeds(buffers, self.envs)
        if isinstance(self.env.unwrapped, SyncVectorEnv):
            obs, _ = self.env.reset(seed=numbers)  # type: ignore[arg-type]
        else:
            obs, _ = self.env.reset(seed=numbers[0])
        self._write(obs, buffers["env.obs"])
        buffers["env.elapsed"][:] = 0
        buffers["env.return"][:] = 0.0
        if buffers["rng.env_step"][1] > 0 and "replay.truncated" in buffers:
            cut_episodes(buffers, self.envs)

    def _check_sizes(self, kernel: Kernel) -> None:
        space = self.action_space
        if isinstance(space, Discrete):
            act = 0
        elif isinstance(space, Box):
            act = flatdim(space)
        else:
            raise UnsupportedError(
                f"environment {self.name!r} has actions {space}; Discrete and Box are supported"
            )
        found, given = (flatdim(self.obs_space), act), (kernel.dim("obs"), kernel.dim("act"))
        if found != given:
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} has (obs, act) = {found}, "
                f"the kernel says {given}"
            )

    def _flat(self, one: Any, index: int) -> Array:
        """One environment's observation as a vector; a ValueError if its size is wrong."""
        value = one if isinstance(self.obs_space, Box) else flatten(self.obs_space, one)
        flat = np.asarray(value, dtype=np.float32).reshape(-1)
        size = self.buffers["env.obs"].shape[1]
        if flat.size != size:
            raise ValueError(
                f"environment {self.name!r}, number {index}: an observation of {flat.size} "
                f"components; its space has {size}"
            )
        return flat

    def _write(self, obs: Any, out: Array) -> None:
        """Flattens a batch of observations into `out` (N, O); refuses what is not finite."""
        if isinstance(self.obs_space, Box):
            flat = np.asarray(obs)
            if flat.size != out.size:
                raise ValueError(
                    f"environment {self.name!r}: observations of shape {flat.shape}; "
                    f"expected {self.envs} times {self.obs_space.shape}"
                )
            out[:] = flat.reshape(out.shape)
        else:
            for n, one in enumerate(
                gymnasium.vector.utils.iterate(self.env.observation_space, obs)
            ):
                out[n] = self._flat(one, n)
        self._check_finite(out, "observation")

    def _check_finite(self, values: Array, what: str) -> None:
        if not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"environment {self.name!r}, number {bad}: {what} {values[bad]} is not finite; "
                "learning from it would spoil all parameters"
            )

    def __call__(self) -> None:
        b = self.buffers
        action, obs, next_obs = b["act.action"], b["env.obs"], b["step.next_obs"]
        b["step.obs"][:] = obs
        b["step.action"][:] = action
        space = self.action_space
        if isinstance(space, Discrete):
            given: Array = action + space.start if space.start else action
        else:
            given = action.reshape(self.envs, *(space.shape or ())).astype(space.dtype, copy=False)
        try:
            seen, reward, terminated, truncated, infos = self.env.step(given)
        except ValueError as error:
            raise ValueError(
                f"environment {self.name!r} failed in step {int(b['rng.env_step'][1])}, or its "
                f"observations changed shape: {error}"
            ) from error
        b["rng.env_step"][1] += np.uint64(1)
        reward = np.asarray(reward, dtype=np.float64)
        self._check_finite(reward, "reward")
        b["step.reward"][:] = reward
        b["step.terminated"][:] = terminated
        b["step.truncated"][:] = truncated
        self._write(seen, next_obs)
        obs[:] = next_obs
        b["env.elapsed"] += 1
        ended = np.logical_or(terminated, truncated)
        b["env.return"] += reward
        if ended.any():
            self._restart(ended, infos)

    def _restart(self, ended: Array, infos: dict[str, Any]) -> None:
        """Gives step.next_obs the true successors and env.obs the first of the next episodes."""
        b = self.buffers
        obs, next_obs = b["env.obs"], b["step.next_obs"]
        for n in np.flatnonzero(ended):
            record(
                n, 0.0, True, b["env.return"], b["env.elapsed"],
                b["episode.returns"], b["episode.lengths"], b["episode.count"],
            )  # fmt: skip
        if self.mode == AutoresetMode.SAME_STEP:
            for n in np.flatnonzero(ended):
                next_obs[n] = self._flat(infos["final_obs"][n], int(n))
            self._check_finite(next_obs, "observation")
        elif self.mode == AutoresetMode.DISABLED:
            first, _ = self.env.reset(options={"reset_mask": ended})
            fresh = np.empty_like(obs)
            self._write(first, fresh)
            obs[ended] = fresh[ended]
        else:
            restart_cartpole(self.env.unwrapped, ended, obs)


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """env_step through gymnasium: makes the environments and resets them, seeds from the key."""
    return GymnasiumStep(kernel, buffers)
