"""Evaluation of a policy on the environment that its spec names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl.runtime.environments import external_envs
from pearl.spec.own_code import own_code
from pearl.training.policy import Policy
from pearl_devices import Kernel, UnsupportedError
from pearl_devices.base import EnvironmentFailed
from pearl_devices.named import environment

if TYPE_CHECKING:
    import gymnasium

    from pearl.spec.system import System


MAX_STEPS = 10_000
"""Env steps after which an evaluation cuts an episode of an environment that has no limit of its
own, where the spec names none (assumed)."""


def make_env(env_id: str, args: Mapping[str, Any], stack: int = 0) -> gymnasium.Env[Any, Any]:
    """One environment with the arguments of the spec.

    env_id: of gymnasium, or `module:callable`.
    stack: frames in an observation; 0: observations as they are.

    Raises:
        UnsupportedError: the environment cannot be made.
    """
    from pearl_devices.primitives.envs.gym_make import stacked

    try:
        return stacked(environment(env_id, args), stack)
    except ValueError as error:
        raise UnsupportedError(f"environment {env_id!r} cannot be made: {error}") from error


@dataclass(frozen=True)
class Evaluation:
    """The result of greedy episodes.

    returns: undiscounted, of every episode. Of an episode that was cut, until the cut.
    cut: episodes that were cut after `max_steps` env steps.
    """

    returns: tuple[float, ...]
    cut: int
    max_steps: int

    @property
    def text(self) -> str:
        """The episodes that were cut, in words; empty where none was."""
        if not self.cut:
            return ""
        return (
            f"{self.cut} of {len(self.returns)} episodes had not ended after {self.max_steps:,} "
            "env steps and were cut (train.evaluate_max_steps); their returns are of these steps"
        )


def evaluate(policy: Policy, episodes: int, seed: int) -> Evaluation:
    """Play `episodes` episodes of the greedy policy, one after another.

    Episode i starts from `reset(seed=…)` keyed by (seed, i), so equal seeds give equal episodes.
    `train.evaluate_max_steps` and `train.env_time_limit` hold.

    Raises:
        EnvironmentFailed: which environment failed, when, and how.
    """
    from pearl_devices.primitives.math.rng import key

    system = policy.system
    max_steps = system.train.evaluate_max_steps or system.env.max_episode_steps or MAX_STEPS
    env = make_env(system.env.id, system.env.args, system.env.stack)
    asked, totals, cut = _Asked(system.env.id), [], 0
    try:
        with own_code(system, "the policy"), _limited(system, asked):
            for episode in range(episodes):
                with asked.at(episode, 0):
                    obs, _ = env.reset(seed=key(seed, f"evaluation {episode}") % 2**31)
                total, over, steps = 0.0, False, 0
                while not over and steps < max_steps:
                    action = policy.act(_as_given(env.observation_space, obs, policy.kernel))
                    steps += 1
                    with asked.at(episode, steps):
                        step = env.step(int(action) if system.env.actions else action)
                    obs, over = step[0], bool(step[2] or step[3])
                    total += float(step[1])
                totals.append(total)
                cut += not over
    finally:
        env.close()
    return Evaluation(tuple(totals), cut, max_steps)


class _Asked:
    """The environment of an evaluation.

    since_s: monotonic time at which it was asked and has not answered; None: it is not being asked.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.since_s: float | None = None

    @contextmanager
    def at(self, episode: int, step: int) -> Iterator[None]:
        """Meanwhile the environment is asked; its errors become an EnvironmentFailed."""
        self.since_s = time.monotonic()
        try:
            yield
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise EnvironmentFailed(
                f"environment {self.name!r}, evaluation episode {episode}, step {step}: {text}"
            ) from error
        finally:
            self.since_s = None


@contextmanager
def _limited(system: System, asked: _Asked) -> Iterator[None]:
    """Apply `train.env_time_limit` to an environment that has no native twin."""
    from pearl_devices.primitives.envs.native_envs import NATIVE

    if asked.name in NATIVE:
        yield
        return
    environments = {"evaluation": asked}
    limit_s = system.train.env_time_limit or external_envs.TIME_LIMIT_S
    from pearl.runtime.environments.watchdog import limited

    with limited(environments, environments, limit_s):
        yield


def _as_given(space: Any, obs: Any, kernel: Kernel) -> npt.NDArray[Any]:
    """An observation in the form that the policy takes: flat float32, or the number of a state."""
    from gymnasium.spaces.utils import flatten

    if kernel.dims.get("states"):
        return np.asarray(int(obs) - int(space.start))
    return np.asarray(flatten(space, obs), np.float32)
