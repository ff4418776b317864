"""Networks and an algorithm of users for `own`: all need torch."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from torch import nn


class Frames(gymnasium.Env[Any, Any]):
    """Random pictures of 4 × side × side that change little and cost next to nothing."""

    def __init__(self, side: int) -> None:
        self.observation_space = Box(0, 255, (4, side, side), np.uint8)
        self.action_space = Discrete(4)
        self._picture = np.random.default_rng(0).integers(0, 256, (4, side, side), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 200
        return self._picture, {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._picture, float(action == 0), False, self._left == 0, {}


def nature(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The network of Mnih et al. (2015)."""
    convolutions = nn.Sequential(
        nn.Conv2d(inputs[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    side = (((inputs[1] - 8) // 4 + 1 - 4) // 2 + 1) - 2
    return nn.Sequential(
        convolutions, nn.Linear(64 * side**2, 512), nn.ReLU(), nn.Linear(512, outputs)
    )


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """Dense layers with LayerNorm."""
    size = math.prod(inputs)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 128), nn.LayerNorm(128), nn.ReLU(),
        nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, outputs),
    )  # fmt: skip
