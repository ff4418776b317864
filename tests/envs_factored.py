"""An environment whose actions have two discrete components."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete


class Two(gymnasium.Env[Any, Any]):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {}
