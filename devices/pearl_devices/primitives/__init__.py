"""The implementations of kernels on the CPU: native (numba) and torch.

This module is pure data, so the planner can import it. The other modules import numba, torch or
gymnasium; binding a kernel imports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NativeEnv:
    """Sizes of an environment that has a native implementation.

    obs: observation components. act: action components, 0 for discrete actions. actions: number of
    discrete actions, 0 for continuous ones. step_limit: steps after which an episode is truncated.
    """

    obs: int
    act: int
    actions: int
    step_limit: int


NATIVE_ENVS: Mapping[str, NativeEnv] = {
    "CartPole-v1": NativeEnv(obs=4, act=0, actions=2, step_limit=500),
    "Pendulum-v1": NativeEnv(obs=3, act=1, actions=0, step_limit=200),
    "Acrobot-v1": NativeEnv(obs=6, act=0, actions=3, step_limit=500),
    "MountainCar-v0": NativeEnv(obs=2, act=0, actions=3, step_limit=200),
    "MountainCarContinuous-v0": NativeEnv(obs=2, act=1, actions=0, step_limit=999),
}
"""Environment id → its sizes as gymnasium registers it, without arguments."""

LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of the standard deviations of SAC's policy, from the authors' code."""

KL_MARGIN = 1.5
"""PPO's gradient steps end when the estimated divergence is above this factor times `target_kl`, as
in OpenAI's Spinning Up and in stable-baselines3."""

HELPER = "second core"
"""Name of a thread that takes half of another thread's gradient steps."""
