"""Environments that observe uint8: an image, a stack of their own, a vector of bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SHAPES = {"image": (3, 4, 2), "stack": (4, 5, 5), "bytes": (16,)}


class Pictures(gymnasium.Env[Any, Any]):
    """kind: of SHAPES. wrong: it observes what is no uint8, as a picture that was scaled before."""

    action_space = Discrete(3)

    def __init__(self, kind: str = "image", wrong: bool = False) -> None:
        self.observation_space = Box(0, 255, SHAPES[kind], np.uint8)
        self.wrong = wrong

    def observe(self) -> Any:
        seen = self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)
        return seen / 255 if self.wrong else seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), float(action), self.t % 5 == 0, self.t % 7 == 0, {}


def network(shape: tuple[int, ...], outputs: int) -> Any:
    import torch

    first = torch.nn.Linear(int(np.prod(shape)), 8)
    return torch.nn.Sequential(
        torch.nn.Flatten(), first, torch.nn.ReLU(), torch.nn.Linear(8, outputs)
    )
