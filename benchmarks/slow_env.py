"""CartPole that takes a given CPU time a step, as an environment of the user's own.

Name it in a spec as `env: benchmarks.slow_env:cartpole` with `env_args: {us: 30}`.
"""

from __future__ import annotations

import time
from typing import Any

SLEEP_S = 1e-4
"""What is left of a wait when it begins to count instead of sleeping: a sleep may take so much
longer (Linux's timer slack of 50 us, and the way back to a core)."""


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


def vector_of(us: float, num_envs: int) -> Any:
    """So many CartPoles in one vector environment, as of a simulator elsewhere: a step of all takes
    `us` microseconds, or their own where that is more; for what is left it waits."""
    import gymnasium
    from gymnasium.envs.classic_control import CartPoleEnv
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    class Waiting(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            until = time.perf_counter() + 1e-6 * us
            result = super().step(actions)
            while (left := until - time.perf_counter()) > 0:
                if left > SLEEP_S:
                    time.sleep(left - SLEEP_S)
            return result

    def one() -> Any:
        return gymnasium.wrappers.TimeLimit(CartPoleEnv(), 500)

    return Waiting([one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
