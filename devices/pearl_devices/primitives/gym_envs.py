"""env_step on any gymnasium environment: an id, or `module:callable` that returns one.

Environments are made one by one and stepped one after the other. A registered vector entry point is
used instead from `BATCHED` environments on, where its episodes can be restarted in the firing in
which they end (it says so, or it is gymnasium's CartPole, whose state is restarted here). So every
firing gives exactly one true transition per environment, and no reset is ever stored as one.

Environment n starts from a seed of its own, drawn from (key, firings done, n); a batched one takes
the first of them. The resets that follow go on with the environment's own generator, as gymnasium's
own vector environments do.

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
from gymnasium.vector import AutoresetMode, VectorEnv

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.envs import record
from pearl_devices.primitives.replay import cut_episodes
from pearl_devices.primitives.rng import bits, stream

Single = gymnasium.Env[Any, Any]
Batch = VectorEnv[Any, Any, Any]
Array = npt.NDArray[Any]
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`module:callable`. A gymnasium id with a module has a version: `module:Name-v0`."""

BATCHED = 6
"""From so many environments on a vector entry point pays: a step of gymnasium's CartPole takes 5 us
alone and 30 us batched, whatever their number (measured, AMD EPYC, gymnasium 1.4)."""


def make(program: str, args: dict[str, Any], envs: int) -> list[Single] | Batch:
    """`envs` environments, or a batch of them; an UnsupportedError names one that cannot be made.

    gymnasium's checker is left out: it only warns, and a wrong shape, NaN or infinity is an error
    here anyway.
    """
    try:
        if CALLABLE.fullmatch(program):
            module, _, name = program.partition(":")
            build: Callable[..., Any] = getattr(import_module(module), name)
            return [build(**args) for _ in range(envs)]
        spec = gymnasium.spec(program)
        batched = spec.vector_entry_point is not None and not spec.additional_wrappers
        if batched and (envs >= BATCHED or spec.entry_point is None):
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
        return [gymnasium.make(program, disable_env_checker=True, **args) for _ in range(envs)]
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedError(
            f"environment {program!r} with arguments {args} cannot be made: {error}"
        ) from error


def is_cartpole(env: Batch) -> bool:
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


class Step:
    """A bound env_step: what stepping environments one by one and in a batch have in common."""

    def __init__(self, kernel: Kernel, buffers: Buffers, obs_space: Any, action_space: Any) -> None:
        self.name, self.envs, self.buffers = str(kernel.program), kernel.dim("envs"), buffers
        self.obs_space, self.action_space = obs_space, action_space
        self.zeros = np.zeros(buffers["env.obs"].size, np.float32)
        if isinstance(action_space, Discrete):
            act = 0
        elif isinstance(action_space, Box):
            act = flatdim(action_space)
        else:
            raise UnsupportedError(
                f"environment {self.name!r} has actions {action_space}; "
                "Discrete and Box are supported"
            )
        found, given = (flatdim(obs_space), act), (kernel.dim("obs"), kernel.dim("act"))
        if found != given:
            raise UnsupportedError(
                f"kernel {kernel.kind}: {self.name!r} has (obs, act) = {found}, "
                f"the kernel says {given}"
            )

    def begin(self) -> None:
        """After the first reset: no step done."""
        b = self.buffers
        b["env.elapsed"][:] = 0
        b["env.return"][:] = 0.0
        if b["rng.env_step"][1] > 0 and "replay.truncated" in b:
            cut_episodes(b, self.envs)

    def flat(self, one: Any, index: int) -> Array:
        """One environment's observation as a vector; a ValueError if its size is wrong."""
        value = one if isinstance(self.obs_space, Box) else flatten(self.obs_space, one)
        flat = np.asarray(value, dtype=np.float32).reshape(-1)
        size = self.buffers["env.obs"].shape[1]
        if flat.size != size:
            raise ValueError(
                f"environment {self.name!r}, number {index}: an observation of {flat.size} "
                f"components and shape {np.shape(one)}; its space has {size}"
            )
        return flat

    def check_finite(self, values: Array, what: str) -> None:
        # The product with zeros is 0 unless a value is not finite; cheaper than asking of each.
        if np.dot(values.reshape(-1), self.zeros[: values.size]) != 0.0:
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"environment {self.name!r}, number {bad}: {what} {values[bad]} is not finite; "
                "learning from it would spoil all parameters"
            )

    def failed(self, error: Exception) -> ValueError:
        firing = int(self.buffers["rng.env_step"][1])
        return ValueError(
            f"environment {self.name!r} failed in step {firing}, or its observations changed "
            f"shape: {error}"
        )

    def end(self, index: int) -> None:
        """Notes a finished episode."""
        b = self.buffers
        record(
            index, 0.0, True, b["env.return"], b["env.elapsed"],
            b["episode.returns"], b["episode.lengths"], b["episode.count"],
        )  # fmt: skip


class SingleSteps(Step):
    """Steps environments one after the other and restarts those that end."""

    def __init__(self, kernel: Kernel, buffers: Buffers, envs: list[Single]) -> None:
        first = envs[0]
        super().__init__(kernel, buffers, first.observation_space, first.action_space)
        self.all, self.discrete = envs, isinstance(first.action_space, Discrete)
        self.offset = int(first.action_space.start) if self.discrete else 0  # type: ignore[attr-defined]
        for n, (env, seed) in enumerate(zip(envs, seeds(buffers, self.envs), strict=True)):
            buffers["env.obs"][n] = self.flat(env.reset(seed=seed)[0], n)
        self.check_finite(buffers["env.obs"], "observation")
        self.begin()

    def actions(self) -> Any:
        """What each environment takes: a Python integer, or an array of its space's type."""
        action, space = self.buffers["act.action"], self.action_space
        if self.discrete:
            return [value + self.offset for value in action.tolist()]
        return action.reshape(self.envs, *space.shape).astype(space.dtype, copy=True)

    def __call__(self) -> None:
        b = self.buffers
        obs, next_obs, reward = b["env.obs"], b["step.next_obs"], b["step.reward"]
        terminated, truncated = b["step.terminated"], b["step.truncated"]
        b["step.obs"][:] = obs
        b["step.action"][:] = b["act.action"]
        ended = []
        for n, (env, action) in enumerate(zip(self.all, self.actions(), strict=True)):
            try:
                seen, value, stop, cut, _ = env.step(action)
            except ValueError as error:
                raise self.failed(error) from error
            next_obs[n] = self.flat(seen, n)
            reward[n] = value
            b["env.return"][n] += value
            terminated[n], truncated[n] = stop, cut
            if stop or cut:
                ended.append(n)
        b["rng.env_step"][1] += np.uint64(1)
        b["env.elapsed"] += 1
        self.check_finite(reward, "reward")
        self.check_finite(next_obs, "observation")
        obs[:] = next_obs
        for n in ended:
            self.end(n)
            obs[n] = self.flat(self.all[n].reset()[0], n)
        if ended:
            self.check_finite(obs, "observation")


class BatchStep(Step):
    """Steps a vector environment, which restarts its episodes or has them restarted here."""

    def __init__(self, kernel: Kernel, buffers: Buffers, env: Batch) -> None:
        super().__init__(kernel, buffers, env.single_observation_space, env.single_action_space)
        self.env, self.mode = env, env.metadata.get("autoreset_mode")
        first, _ = env.reset(seed=seeds(buffers, 1)[0])
        self.write(first, buffers["env.obs"])
        self.begin()

    def write(self, obs: Any, out: Array) -> None:
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
                out[n] = self.flat(one, n)
        self.check_finite(out, "observation")

    def __call__(self) -> None:
        b = self.buffers
        action, obs, next_obs = b["act.action"], b["env.obs"], b["step.next_obs"]
        b["step.obs"][:] = obs
        b["step.action"][:] = action
        space = self.action_space
        if isinstance(space, Discrete):
            given: Array = action + space.start if space.start else action
        else:
            given = action.reshape(self.envs, *space.shape).astype(space.dtype, copy=False)
        try:
            seen, reward, terminated, truncated, infos = self.env.step(given)
        except ValueError as error:
            raise self.failed(error) from error
        b["rng.env_step"][1] += np.uint64(1)
        b["step.reward"][:] = reward
        self.check_finite(b["step.reward"], "reward")
        b["step.terminated"][:] = terminated
        b["step.truncated"][:] = truncated
        self.write(seen, next_obs)
        obs[:] = next_obs
        b["env.elapsed"] += 1
        b["env.return"] += reward
        ended = np.logical_or(terminated, truncated)
        if ended.any():
            self.restart(ended, infos)

    def restart(self, ended: Array, infos: dict[str, Any]) -> None:
        """Gives step.next_obs the true successors and env.obs the first of the next episodes."""
        obs, next_obs = self.buffers["env.obs"], self.buffers["step.next_obs"]
        for n in np.flatnonzero(ended):
            self.end(int(n))
        if self.mode == AutoresetMode.SAME_STEP:
            for n in np.flatnonzero(ended):
                next_obs[n] = self.flat(infos["final_obs"][n], int(n))
            self.check_finite(next_obs, "observation")
        elif self.mode == AutoresetMode.DISABLED:
            first, _ = self.env.reset(options={"reset_mask": ended})
            fresh = np.empty_like(obs)
            self.write(first, fresh)
            obs[ended] = fresh[ended]
        else:
            restart_cartpole(self.env.unwrapped, ended, obs)


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """env_step through gymnasium: makes the environments and resets them, seeds from the key."""
    made = make(str(kernel.program), dict(kernel.args), kernel.dim("envs"))
    if isinstance(made, list):
        return SingleSteps(kernel, buffers, made)
    return BatchStep(kernel, buffers, made)
