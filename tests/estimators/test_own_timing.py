"""Timing environments of the user's own: those that wait, and those that start processes."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from pearl_devices import kernel
from pearl_estimators.host.own_timing import environment

SLEEP_S = 4e-3


class Sleeper(gymnasium.Env[Any, Any]):
    """Waits SLEEP_S in every step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(SLEEP_S)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


def Several(num_envs: int) -> Any:
    """A vector environment whose processes wait at the same time."""
    return gymnasium.vector.AsyncVectorEnv([Sleeper] * num_envs)


def test_a_vector_environment_with_processes_is_timed_and_not_taken_from_the_data_sheet() -> None:
    """A process that is forked by the one that times closes its standard input."""
    k = kernel("env_step", {"envs": 4, "obs": 2, "act": 0}, program=f"{__name__}:Several")
    found = environment(k, "gymnasium")
    assert found.rung == "measured"
    assert found.latency_s > 0.9 * SLEEP_S
