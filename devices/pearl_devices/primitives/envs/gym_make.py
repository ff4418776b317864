"""Environments of gymnasium made from a program: one by one, or as a batch; and their seeds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from pearl_devices.base import Buffers, UnsupportedError
from pearl_devices.primitives.math.rng import bits, stream
from pearl_devices.user_imports import CALLABLE, environment, environments, registered

Single = gymnasium.Env[Any, Any]
Batch = VectorEnv[Any, Any, Any]
Array = npt.NDArray[Any]
BATCHED = 6
"""From so many environments on a vector entry point pays: a step of gymnasium's CartPole takes 5 us
alone and 30 us batched, whatever their number (measured, AMD EPYC, gymnasium 1.4)."""


def make(program: str, args: dict[str, Any], envs: int, stack: int = 0) -> list[Single] | Batch:
    """`envs` environments, or a batch of them; an UnsupportedError names one that cannot be made.
    stack: each observes so many of its last observations, which are frames of uint8.

    gymnasium's checker is left out: it only warns, and a wrong shape, NaN or infinity is an error
    here anyway.
    """
    try:
        if CALLABLE.fullmatch(program):
            made = environments(program, args, envs)
            if isinstance(made, VectorEnv):
                return own_batch(program, made, stack)
            rest = [environment(program, args) for _ in range(envs - 1)]
            return [stacked(env, stack) for env in (made, *rest)]
        spec = gymnasium.spec(registered(program))
        batched = spec.vector_entry_point is not None and not spec.additional_wrappers
        batched = batched and not stack
        if batched and (envs >= BATCHED or spec.entry_point is None):
            env = gymnasium.make_vec(spec.id, envs, vectorization_mode="vector_entry_point", **args)
            mode = env.metadata.get("autoreset_mode")
            if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED) or is_cartpole(env):
                return env
            env.close()
        if spec.entry_point is None:
            raise UnsupportedError(
                f"environment {program!r} has only a vector entry point, and that one spends a "
                "step on each reset; such steps are no transitions and cannot be used"
            )
        alone = [environment(program, args, disable_env_checker=True) for _ in range(envs)]
        return [stacked(env, stack) for env in alone]
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedError(
            f"environment {program!r} with arguments {args} cannot be made: {error}"
        ) from error


def own_batch(program: str, env: Batch, stack: int) -> Batch:
    """A vector environment of the user's own; an UnsupportedError where its episodes cannot be
    restarted without a step that is no transition."""
    if stack:
        raise UnsupportedError(
            f"environment {program!r} is a vector environment, whose frames are not stacked here: "
            "wrap it in gymnasium.wrappers.vector, or leave frame_stack out"
        )
    mode = env.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED) or resets_by_mask(env):
        return env
    raise UnsupportedError(
        f"environment {program!r} has the autoreset mode {mode}, which spends a step on each "
        "reset; such steps are no transitions. Give it metadata['autoreset_mode'] SAME_STEP, with "
        "infos['final_obs'], or DISABLED, with reset(options={'reset_mask': …}), as gymnasium "
        "describes them; of NEXT_STEP gymnasium's SyncVectorEnv and AsyncVectorEnv can be used"
    )


def resets_by_mask(env: Batch) -> bool:
    """Whether it resets those that are named, whatever its autoreset mode: gymnasium's own do."""
    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def stacked(env: Single, stack: int) -> Single:
    """The same, observing its last `stack` frames, oldest first; before there are so many the first
    of the episode stands in. As it is for a stack of 0."""
    if not stack:
        return env
    space = env.observation_space
    if not (isinstance(space, Box) and space.dtype == np.uint8):
        raise UnsupportedError(
            f"environment {env} observes {space}; frames that are stacked are a Box of uint8"
        )
    return gymnasium.wrappers.FrameStackObservation(env, stack, padding_type="reset")


def is_cartpole(env: Batch) -> bool:
    """Whether this is gymnasium's own batched CartPole, whose arrays hold all of its state."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    held = ("state", "steps", "prev_done", "low", "high")
    known = isinstance(env.unwrapped, CartPoleVectorEnv)
    return known and all(hasattr(env.unwrapped, name) for name in held)


def seeds(buffers: Buffers, envs: int, attempt: int = 0) -> list[int]:
    """One seed an environment, from the key and the firings done. attempt: others than before."""
    rng = buffers["rng.env_step"]
    base = np.uint64(stream(rng[0], rng[1] + np.uint64(attempt << 48)))
    return [int(bits(base, n)) >> 33 for n in range(envs)]
