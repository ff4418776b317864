"""`Policy`, and evaluation on the environment that the spec names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl_devices import Kernel

if TYPE_CHECKING:
    import gymnasium

    from pearl.system import System


class Policy:
    """The trained policy without exploration.

    kernel: its `inference.*` kernel; layers: widths of its network; parameters: flat float32 vector
    as in `pearl_devices.buffers`.
    """

    def __init__(self, system: System, kernel: Kernel, parameters: npt.NDArray[np.float32]) -> None:
        self.system = system
        self.kernel = kernel
        self.layers = kernel.layers()
        self.parameters = parameters
        self._low = np.asarray(system.env.act_low, np.float32)
        self._high = np.asarray(system.env.act_high, np.float32)

    def act(self, obs: npt.ArrayLike) -> npt.NDArray[Any]:
        """Greedy actions for observations of shape (B, O), or one for shape (O,).

        Discrete actions are int64 of shape (B,), continuous ones float32 of shape (B, A). Another
        number of components is a ValueError.
        """
        from pearl_devices.cpu import act

        rows = np.asarray(obs, np.float32)
        single = rows.ndim == 1
        rows = np.ascontiguousarray(rows.reshape(1, -1) if single else rows)
        if rows.ndim != 2 or rows.shape[1] != self.layers[0]:
            raise ValueError(
                f"observations have shape {np.shape(obs)}; the policy takes (B, {self.layers[0]})"
            )
        actions = act(self.kernel, self.parameters, rows, self._low, self._high)
        return actions[0] if single else actions


def make_env(env_id: str, args: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """One environment by gymnasium id or `module:callable`, with the arguments of the spec."""
    import gymnasium

    from pearl_devices.primitives.gym_envs import CALLABLE

    if not CALLABLE.fullmatch(env_id):
        return gymnasium.make(env_id, **args)
    module, _, name = env_id.partition(":")
    env: gymnasium.Env[Any, Any] = getattr(import_module(module), name)(**args)
    return env


def returns(policy: Policy, episodes: int, seed: int) -> list[float]:
    """Undiscounted returns of `episodes` whole episodes of the greedy policy, one after another.

    Episode i starts from `reset(seed=…)` keyed by (seed, i), so equal seeds give equal episodes.
    """
    from gymnasium.spaces.utils import flatten

    from pearl_devices.primitives.rng import key

    system = policy.system
    env = make_env(system.env.id, system.env.args)
    totals = []
    try:
        for episode in range(episodes):
            obs, _ = env.reset(seed=key(seed, f"evaluation {episode}") % 2**31)
            total, over = 0.0, False
            while not over:
                action = policy.act(np.asarray(flatten(env.observation_space, obs), np.float32))
                step = env.step(int(action) if system.env.actions else action)
                obs, over = step[0], bool(step[2] or step[3])
                total += float(step[1])
            totals.append(total)
    finally:
        env.close()
    return totals
