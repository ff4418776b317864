"""CartPole that takes a given CPU time a step, as an environment of the user's own.

Name it in a spec as `env: benchmarks.slow_env:cartpole` with `env_args: {us: 30}`.
"""

from __future__ import annotations

import time
from typing import Any


def cartpole(us: float) -> Any:
    """gymnasium's CartPole-v1; a step takes `us` microseconds of CPU time in all, or its own where
    that is more."""
    import gymnasium

    class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            until = time.thread_time_ns() + round(1e3 * us)
            result = self.env.step(action)
            while time.thread_time_ns() < until:
                pass
            return result

    return Slow(gymnasium.make("CartPole-v1"))


def sleeping(ms: float) -> Any:
    """The same that waits so many milliseconds a step, as for a simulator elsewhere."""
    import gymnasium

    class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            time.sleep(1e-3 * ms)
            return self.env.step(action)

    return Waiting(gymnasium.make("CartPole-v1"))


def sleeping_together(ms: float, num_envs: int) -> Any:
    """So many of the same in gymnasium's AsyncVectorEnv, as a user may write it."""
    from functools import partial

    from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv([partial(sleeping, ms)] * num_envs)
