"""Environments that hang, end their process or disturb it, for `test_bad_environments`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class OwnError(BaseException):
    """An exception that is no `Exception`."""


def spin() -> None:
    while True:
        pass


def hold() -> None:
    """A loop of C that holds the interpreter's lock, and lets no handler of a signal run."""
    sum(range(10**13))


def leave(error: BaseException) -> NoReturn:
    raise error


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


BAD: dict[str, Callable[[], Any]] = {
    "fine": lambda: None,
    "hang": lambda: time.sleep(1000.0),
    "spin": spin,
    "hold": hold,
    "segv": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "exit0": lambda: os._exit(0),
    "sysexit": lambda: sys.exit(3),
    "own": lambda: leave(OwnError("mine")),
    "handles": lambda: os.closerange(3, 200),
    "folder": lambda: os.chdir("/"),
    "handlers": ignore_signals,
}
"""Kind → what a step does."""


class Bad(gymnasium.Env[Any, Any]):
    """It walks at random; from its step `at` on, each step does what its kind says; at 0, its
    making does."""

    observation_space = Box(-1e6, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, kind: str = "fine", at: int = 150, asked: str = "") -> None:
        self.kind, self.at, self.steps, self.asked = kind, at, 0, asked
        if at == 0:
            BAD[kind]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps >= self.at:
            if self.asked:
                with open(self.asked, "w"):
                    pass
            BAD[self.kind]()
        seen = self.np_random.normal(size=3).astype(np.float32)
        return seen, 1.0, bool(self.np_random.random() < 0.05), False, {}
