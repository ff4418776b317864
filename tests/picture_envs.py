"""Environments that observe uint8: images, a stack of their own, vectors of bytes, parts."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from pearl_devices.kernels import KernelKind

SHAPES = {"image": (3, 4, 2), "stack": (4, 5, 5), "bytes": (16,)}
IMAGES, BYTES = (Box(0, 255, SHAPES[kind], np.uint8) for kind in ("image", "bytes"))
SPACES: dict[str, gymnasium.Space[Any]] = {
    **{kind: Box(0, 255, shape, np.uint8) for kind, shape in SHAPES.items()},
    "dict": Dict({"front": IMAGES, "back": IMAGES}),
    "tuple": Tuple((BYTES, BYTES)),
    "mixed": Dict({"front": IMAGES, "state": BYTES}),
    "floats": Dict({"front": IMAGES, "state": Box(0, 1, (2,))}),
}


class Pictures(gymnasium.Env[Any, Any]):
    """kind: of SPACES. wrong: it observes what is no uint8, as a picture that was scaled before."""

    action_space = Discrete(3)

    def __init__(self, kind: str = "image", wrong: bool = False) -> None:
        self.observation_space, self.wrong = deepcopy(SPACES[kind]), wrong

    def observe(self) -> Any:
        if self.observation_space.shape is None:
            return self.observation_space.sample()
        seen = self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)
        return seen / 255 if self.wrong else seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
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


def _takes(array: str, *axes: str) -> KernelKind:
    return KernelKind(
        arrays=lambda k: {array: (tuple(k.dim(axis) for axis in axes), "float32")},
        writes=(array,),
        variants={"python": "tests.picture_envs:idle"},
    )


SHADES = _takes("step.next_obs", "envs", "obs")
LOOKS = _takes("rollout.obs", "horizon", "envs", "obs")
PAYS = _takes("step.reward", "envs")
"""Kernels of the user that change what is stored next, what is stored, neither."""


def idle(kernel: Any, arrays: Any) -> None:
    """Change nothing."""
