"""Environments that the tests play in processes. A child imports this module alone, so it imports
nothing of PEARL."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tests.processes import until

Env = gymnasium.Env[Any, Any]


class Walk(Env):
    """It walks at random and often ends. fault: what a step does that finds and removes the file
    `armed`: exit, block or raise."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", armed: str = "") -> None:
        self.fault, self.armed, self.place = fault, armed, np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3)
        return self.place.astype(np.float32), {"lock": None}

    def step(self, action: Any) -> Any:
        self.place = self.place + self.np_random.normal(size=3) + action
        if self.fault and self.first():
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "block":
                time.sleep(600.0)
            raise Diverged("x", 3)
        over = bool(self.np_random.random() < 0.1)
        infos = {"no process can have": lambda: None}
        return self.place.astype(np.float32), float(self.place[0]), over, False, infos

    def first(self) -> bool:
        """Whether it is the one that removes the file."""
        try:
            Path(self.armed).unlink()
        except FileNotFoundError:
            return False
        return True


class Diverged(Exception):
    """It cannot be made from its words alone."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


class Meeting(Walk):
    """A step is over once `size` environments are in theirs; alone it never is."""

    def __init__(self, folder: str, size: int) -> None:
        super().__init__()
        self.folder, self.size, self.steps = Path(folder), size, 0

    def step(self, action: Any) -> Any:
        (self.folder / f"{self.steps}-{os.getpid()}").touch()
        here = f"{self.steps}-*"
        until(lambda: len([*self.folder.glob(here)]) == self.size, "the others")
        self.steps += 1
        return super().step(action)


def Batch(num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([Walk] * num_envs)
