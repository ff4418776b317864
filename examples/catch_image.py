"""A small image environment and a convolutional network for it: both named in a spec.

PYTHONPATH=. python -m examples.catch_image
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import pearl

SIDE = 16


class Catch(gymnasium.Env):
    """A ball falls straight down a picture of 16 × 16; a paddle of three pixels below moves left,
    stays, or moves right. At the end the reward is 1 if it holds the ball, else -1."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (1, SIDE, SIDE), np.uint8)
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.row, self.column = 0, int(self.np_random.integers(SIDE))
        self.paddle = int(self.np_random.integers(1, SIDE - 1))
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        self.paddle = min(max(self.paddle + int(action) - 1, 1), SIDE - 2)
        self.row += 1
        over = self.row == SIDE - 1
        held = abs(self.paddle - self.column) <= 1
        reward = (1.0 if held else -1.0) if over else 0.0
        return self._picture(), reward, over, False, {}

    def _picture(self) -> Any:
        picture = np.zeros((1, SIDE, SIDE), np.uint8)
        picture[0, -1, self.paddle - 1 : self.paddle + 2] = 255
        picture[0, self.row, self.column] = 255
        return picture


def cnn(inputs: tuple[int, ...], outputs: int) -> Any:
    """Two convolutions and two dense layers, for pictures (channels, 16, 16) of 0 … 255."""
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(inputs[0], 8, 4, stride=2),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, stride=2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(16 * 3 * 3, 64),
                nn.ReLU(),
                nn.Linear(64, outputs),
            )

        def forward(self, x: Any) -> Any:
            return self.layers(x / 255.0)

    return Scaled()


SPEC = {
    "algorithm": {
        "name": "dqn",
        "env": "examples.catch_image:Catch",
        "network": "examples.catch_image:cnn",
        "num_envs": 8,
        "batch_size": 32,
        "replay_ratio": "1/4",
        "replay": {"capacity": 10_000},
        "learning_rate": 1e-3,
        "target": {"tau": 0.02},
        "exploration": {"steps": 8000},
    },
    "train": {"steps": 20_000, "evaluate_every": 5000, "evaluate_episodes": 50},
}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
