"""An environment for the tests of failures: it walks at random, and does what it is told to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

BORN: list[int] = [0]
"""How many this process has made and reset with a seed, as training does."""


class Walk(gymnasium.Env[Any, Any]):
    """fault: what happens in step `at` of environment `which`, the first time that a process gets
    there while the file `armed` is there, which it removes: raise, nan, shape, block, hard (blocks
    in code that no signal interrupts), exit; or in each of its lives from then on (always).
    private: it draws from a generator that nobody can see."""

    observation_space = Box(-1e6, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(
        self, fault: str = "", at: int = 20, which: int = 1, armed: str = "", private: bool = False
    ) -> None:
        self.fault, self.at, self.private, self.armed = fault, at, private, armed
        self.which, self.mine = which, False
        self.born = False
        self.steps = self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if not self.born and seed is not None:
            self.born, self.mine = True, BORN[0] % 4 == self.which
            BORN[0] += 1
        self.t, self.place = 0, self.np_random.normal(size=3)
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.t += 1
        noise = np.random.normal(size=3) if self.private else self.np_random.normal(size=3)
        self.place = self.place + noise + (action - 0.5)
        seen, reward = self.place.astype(np.float32), float(-np.abs(self.place).mean())
        if self.due():
            if self.fault in ("raise", "always"):
                raise RuntimeError("the simulator\nhas diverged")
            if self.fault == "nan":
                seen[1] = np.nan
            if self.fault == "shape":
                seen = np.zeros(4, np.float32)
            if self.fault == "hard":
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            if self.fault in ("block", "hard"):
                time.sleep(600.0)
            if self.fault == "exit":
                os._exit(3)
        return seen, reward, False, bool(self.np_random.random() < 0.05), {}

    def due(self) -> bool:
        if self.fault == "always":
            return BORN[0] > 4 or (self.mine and self.steps == self.at)
        if not self.fault or not self.mine or self.steps != self.at:
            return False
        try:
            Path(self.armed).unlink()
        except FileNotFoundError:
            return False
        return True
