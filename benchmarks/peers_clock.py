"""How a library is clocked, whatever it logs itself: its environments count their steps."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Env steps per CPU-second of this process, from env step `warm` on."""

    def __init__(self, warm: int) -> None:
        self.warm, self.steps = warm, 0
        self.begin: tuple[int, float] | None = None

    def tick(self, steps: int = 1) -> None:
        """So many env steps are done."""
        self.steps += steps
        if self.begin is None and self.steps > self.warm:
            self.begin = (self.steps, time.process_time())

    def rate(self) -> float:
        """Env steps per CPU-second since the warm-up. A RuntimeError if it never ended."""
        if self.begin is None or self.begin[0] == self.steps:
            raise RuntimeError(f"{self.steps} env steps are no more than the warm-up, {self.warm}")
        at, since = self.begin
        return (self.steps - at) / (time.process_time() - since)

    def env(self, env_id: str) -> Any:
        """A gymnasium environment that ticks."""
        import gymnasium

        clock = self

        class Ticking(gymnasium.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:
                clock.tick()
                return self.env.step(action)

        return Ticking(gymnasium.make(env_id))
