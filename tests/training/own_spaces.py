"""Environments with spaces that are not one number or a bounded Box, and vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

FULL = np.full((4, 4), 255, np.uint8)
SPACES: dict[str, Any] = {"start": Discrete(3, start=5), "factored": MultiDiscrete([2, 3]),
                          "started": MultiDiscrete([2, 3], start=[4, -1]), "binary": MultiBinary(3),
                          "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
                          "half": Box(np.array([0.25, -np.inf]), np.array([np.inf, 0.5]),
                                      dtype=np.float32)}  # fmt: skip


class Spaced(gymnasium.Env[Any, Any]):
    """An episode of five steps whose reward is 1 for an action that its space contains."""

    def __init__(self, actions: str = "start", observations: str = "box", length: int = 5) -> None:
        self.action_space = SPACES[actions]
        picture = Box(0, 255, (4, 4), np.uint8)
        self.observation_space = {
            "box": Box(-10, 10, (3,), np.float32),
            "image": picture,
            "dict": Dict({"where": Box(-10, 10, (2,), np.float32), "camera": picture}),
        }[observations]
        self.kind, self.length, self.at = observations, length, 0

    def _seen(self) -> Any:
        where = np.array([self.at, 1, 2], np.float32)
        if self.kind == "image":
            return FULL
        return where if self.kind == "box" else {"where": where[:2], "camera": FULL}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        taken = np.asarray(action, self.action_space.dtype)
        given = action if isinstance(self.action_space, Discrete) else taken
        fits = self.action_space.contains(given)
        return self._seen(), float(fits), self.at == self.length, False, {}


def lengths(num_envs: int) -> list[Any]:
    """Environments whose episodes end at different times."""
    return [lambda n=n: Spaced(actions="factored", length=3 + n) for n in range(num_envs)]


def same_step(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(lengths(num_envs), autoreset_mode=AutoresetMode.SAME_STEP)


def next_step(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(lengths(num_envs))


def disabled(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(lengths(num_envs), autoreset_mode=AutoresetMode.DISABLED)


def apart(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return AsyncVectorEnv(lengths(num_envs))


def fixed() -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(lengths(4))


class Unsaid(SyncVectorEnv):
    """One that says nothing of how it restarts episodes, and is not gymnasium's."""

    @property
    def unwrapped(self) -> Any:
        return object()


def unsaid(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return Unsaid(lengths(num_envs))
