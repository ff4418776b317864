"""Environments that say which of their actions are legal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv


class Masked(gymnasium.Env[Any, Any]):
    """An episode of three steps in which action 0 alone is legal.

    since: the reset from which on the mask is in its info, from 0.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, since: int = 0) -> None:
        self.since, self.resets, self.at = since, 0, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets, self.at = self.resets + 1, 0
        mask = {"action_mask": np.array([1, 0, 0], np.int8)}
        return np.zeros(2, np.float32), mask if self.resets > self.since else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return np.ones(2, np.float32), float(action == 0), self.at == 3, False, {}


class Asking(Masked):
    """The same, by a method."""

    def __init__(self) -> None:
        super().__init__(since=10**9)

    def action_masks(self) -> Any:
        return np.array([True, False, False])


def vector(num_envs: int, since: int = 0) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([lambda: Masked(since)] * num_envs)


def asking_vector(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Asking] * num_envs)


def in_processes(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return AsyncVectorEnv([Asking] * num_envs)
