"""Environments for the tests of actors in any order."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from tests.faulty_envs import Walk


class Uneven(Walk):
    """One of all, the first that finds the file `claim` and removes it, is slower than the rest."""

    def __init__(self, claim: str = "", slow_s: float = 0.0) -> None:
        super().__init__()
        self.claim, self.slow_s, self.step_s = claim, slow_s, 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.step_s:
            self.step_s = 0.0002
            try:
                Path(self.claim).unlink()
                self.step_s = self.slow_s
            except OSError:
                pass
        time.sleep(self.step_s)
        return super().step(action)


class Sleeping(Walk):
    """Each step waits this long."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        self.step_s = step_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s)
        return super().step(action)


HELD_S = 0.05


def held(name: str, file: str, after: int) -> Any:
    """gymnasium's environment of this name; while `file` is there, each step beyond so many waits
    for HELD_S, so that a run does not end before it is told to."""

    class Held(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            self.steps += 1
            if self.steps > after and Path(file).exists():
                time.sleep(HELD_S)
            return self.env.step(action)

    return Held(gymnasium.make(name))


class Dying(Walk):
    """It ends its process in whatever life it has, once the file `armed` is there."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Path(self.armed).exists():
            os._exit(3)
        return super().step(action)


class Stuck(Walk):
    """Once the file `armed` is there a step never returns from C, whatever signal comes: it locks
    twice what can be locked once. holding: it holds the interpreter's lock meanwhile."""

    def __init__(self, armed: str = "", holding: bool = False) -> None:
        super().__init__(armed=armed)
        self.library = ctypes.PyDLL(None) if holding else ctypes.CDLL(None)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Path(self.armed).exists() and self.steps > 50:
            mutex = ctypes.create_string_buffer(256)
            for _ in range(2):
                self.library.pthread_mutex_lock(mutex)
        return super().step(action)


class Slow(Walk):
    """Nearly all of its time it is being asked. Once it is, the file `going` is there."""

    def __init__(self, going: str = "") -> None:
        super().__init__()
        self.going = going

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 8:
            Path(self.going).touch()
        time.sleep(0.02)
        return super().step(action)
