"""Environments of gymnasium made from a program: one by one, or as a batch; and their seeds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from pearl_devices.base import Buffers, UnsupportedError
from pearl_devices.primitives.math.rng import bits, stream_base
from pearl_devices.user_imports import CALLABLE, make_environment, make_environments, register_env

Single = gymnasium.Env[Any, Any]
Batch = VectorEnv[Any, Any, Any]
Array = npt.NDArray[Any]
BATCHED = 6
"""Number of environments from which a vector entry point is faster: a step of gymnasium's CartPole
takes 5 us for a single environment and 30 us for a batch of any size (measured, AMD EPYC,
gymnasium 1.4)."""


def make(program: str, args: dict[str, Any], envs: int, stack: int = 0) -> list[Single] | Batch:
    """Make `envs` environments, or one batch of them.

    PEARL disables gymnasium's checker: the checker only warns, and in PEARL a wrong shape, a NaN or
    an infinity is an error.

    stack: number of last observations (frames of uint8) that an environment observes; 0: only the
        last one, of any kind.

    Raises:
        UnsupportedError: The environment cannot be made, or spends a step on each reset.
    """
    try:
        if CALLABLE.fullmatch(program):
            made = make_environments(program, args, envs)
            if isinstance(made, VectorEnv):
                return check_batch(program, made, stack)
            rest = [make_environment(program, args) for _ in range(envs - 1)]
            return [stack_frames(env, stack) for env in (made, *rest)]
        spec = gymnasium.spec(register_env(program))
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
        alone = [make_environment(program, args, disable_env_checker=True) for _ in range(envs)]
        return [stack_frames(env, stack) for env in alone]
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedError(
            f"environment {program!r} with arguments {args} cannot be made: {error}"
        ) from error


def check_batch(program: str, env: Batch, stack: int) -> Batch:
    """Check that PEARL can step a user-defined vector environment, and return it.

    Raises:
        UnsupportedError: Its frames are to be stacked, or each reset takes a step.
    """
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
    """Return whether `env` takes a reset mask in any autoreset mode, as gymnasium's own do."""
    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def stack_frames(env: Single, stack: int) -> Single:
    """Return `env`, observing its last `stack` frames, oldest first; unchanged if `stack` is 0.

    At the start of an episode, its first frame fills the places of missing frames.

    Raises:
        UnsupportedError: The observations are not a Box of uint8.
    """
    if not stack:
        return env
    space = env.observation_space
    if not (isinstance(space, Box) and space.dtype == np.uint8):
        raise UnsupportedError(
            f"environment {env} observes {space}; frames that are stacked are a Box of uint8"
        )
    return gymnasium.wrappers.FrameStackObservation(env, stack, padding_type="reset")


def is_cartpole(env: Batch) -> bool:
    """Return whether `env` is gymnasium's batched CartPole, whose arrays are its whole state."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    fields = ("state", "steps", "prev_done", "low", "high")
    same_class = isinstance(env.unwrapped, CartPoleVectorEnv)
    return same_class and all(hasattr(env.unwrapped, name) for name in fields)


GLOBAL = 1 << 15
"""Attempt from which the seeds of the generators of a whole process are drawn."""


def draw_seeds(buffers: Buffers, envs: int, attempt: int = 0) -> list[int]:
    """Return one seed per environment, drawn from the key, the firings done and the attempt."""
    rng = buffers["rng.env_step"]
    base = np.uint64(stream_base(rng[0], rng[1] + np.uint64(attempt << 48)))
    return [int(bits(base, n)) >> 33 for n in range(envs)]
