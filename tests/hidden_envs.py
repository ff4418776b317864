"""An environment that draws its luck where a checkpoint cannot see it."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Luck(gymnasium.Env[Any, Any]):
    """It observes its step, the number drawn at its reset, and a number drawn at each step. So a
    successor tells of which episode it is.

    source: of the numbers: numpy, random, own, clock; or np_random, which comes back.
    length: of an episode.
    """

    observation_space = Box(-1e9, 1e9, (3,), np.float64)
    action_space = Discrete(2)

    def __init__(self, source: str = "numpy", length: int = 7) -> None:
        self.source, self.length, self.own = source, length, np.random.default_rng()

    def draw(self) -> float:
        return {
            "numpy": np.random.random,
            "random": random.random,
            "own": self.own.random,
            "clock": lambda: time.monotonic_ns() % 1_000_003 / 1_000_003,
            "np_random": self.np_random.random,
        }[self.source]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.mine = 0, self.draw()
        return np.array([0.0, self.mine, self.draw()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        seen = np.array([self.t, self.mine, self.draw()])
        return seen, 1.0, False, self.t >= self.length, {}
