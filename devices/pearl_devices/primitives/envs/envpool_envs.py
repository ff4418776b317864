"""env_step on envpool's environments (extra `envpool`): its C++ versions, stepped in one call.

A gymnasium id that envpool also knows names envpool's version here. Its dynamics and rewards need
not equal gymnasium's bit for bit, and evaluation uses gymnasium's. So a plan has this variant only
if `limits.variants` names it. One thread steps all environments, in order.

By itself, envpool spends a step on each reset; its action is ignored and its reward is 0. Here,
environments whose episodes have ended are reset in the same firing, by envpool's call for some of
them. So every firing gives one true transition per environment, `step.next_obs` is the last
observation of the episode, and no reset is stored as a transition. observation of the episode, and
no reset is stored as a transition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pearl_devices.base import Buffers, Call, UnsupportedError
from pearl_devices.extras import install_hint
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.envs.env_step import normalised
from pearl_devices.primitives.envs.gym_envs import VectorEnvStep
from pearl_devices.primitives.envs.gym_make import Array, Batch


class Pool(VectorEnv[Any, Any, Any]):
    """envpool with gymnasium's interface; ended environments are reset on request."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, program: str, args: dict[str, Any], envs: int) -> None:
        """Make the pool.

        Raises:
            UnsupportedError: envpool lacks the environment, cannot make it, or its observations are
                not Box or Discrete.
        """
        try:
            import envpool
        except ImportError as error:
            raise UnsupportedError(
                f"environment {program!r}: variant envpool needs the package envpool: {error}; "
                f"{install_hint('envpool')}, or name another variant"
            ) from error
        if program not in envpool.list_all_envs():
            raise UnsupportedError(
                f"envpool {envpool.__version__} has no environment {program!r}; run env_step as "
                "gymnasium, or name one of envpool.list_all_envs()"
            )
        self.program, self.args, self.num_envs = program, args, envs
        self.build: Any = envpool.make
        self.pool: Any = None
        try:
            spec = envpool.make_spec(program, **args)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise UnsupportedError(
                f"envpool's {program!r} with arguments {args} cannot be made: {error}"
            ) from error
        self.single_observation_space = spec.gymnasium_observation_space
        self.single_action_space = spec.gymnasium_action_space
        if not isinstance(self.single_observation_space, Box | Discrete):
            raise UnsupportedError(
                f"envpool's {program!r} observes {self.single_observation_space}; Box and Discrete "
                "are supported"
            )
        self.observation_space = batch_space(self.single_observation_space, envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset all environments from `seed`, seed + 1, …, or only those of options["reset_mask"].
        Return first observations in their rows; the other rows are 0."""
        if self.pool is None or seed is not None:
            start = 0 if seed is None else int(seed) % (2**31 - self.num_envs)
            self.close_extras()
            self.pool = self.build(
                self.program,
                env_type="gymnasium",
                num_envs=self.num_envs,
                num_threads=1,
                seed=start,
                **self.args,
            )
            first, info = self.pool.reset()
            return first[np.argsort(info["env_id"])], {}
        mask = (options or {}).get("reset_mask")
        which = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        first, info = self.pool.reset(which.astype(np.int32))
        obs = np.zeros((self.num_envs, *first.shape[1:]), first.dtype)
        obs[info["env_id"]] = first
        return obs, {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all environments; row n belongs to environment n."""
        assert self.pool is not None  # reset makes it
        given = np.asarray(actions)
        if given.dtype == np.int64:
            given = given.astype(np.int32)
        obs, reward, terminated, truncated, info = self.pool.step(given)
        order = np.argsort(info["env_id"])
        return obs[order], reward[order], terminated[order], truncated[order], {}

    def close_extras(self, **_: Any) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None


class PoolStep(VectorEnvStep):
    """Steps a `Pool`."""

    def remake(self) -> Batch:
        return Pool(self.name, self.args, self.envs)

    def why_lost(self) -> str:
        return (
            f"environment {self.name!r}: envpool does not give the state of its environments "
            "(those of the variant gymnasium come back)"
        )


def bind_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind env_step through envpool: make and reset the environments, with seeds from the key."""
    pool = Pool(str(kernel.program), dict(kernel.args), kernel.dim("envs"))
    return normalised(kernel, buffers, PoolStep(kernel, buffers, pool))
