"""`Policy`, and evaluation on the environment that the spec names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl.runtime import outside
from pearl_devices import Kernel, UnsupportedError
from pearl_devices.base import EnvironmentFailed
from pearl_devices.named import environment

if TYPE_CHECKING:
    import gymnasium
    import torch

    from pearl.system import System


MAX_STEPS = 10_000
"""Env steps after which an evaluation cuts an episode of an environment that has no limit of its
own, where the spec names none (assumed)."""


class Policy:
    """The trained policy without exploration.

    kernel: that of the task `inference`. parameters: those of its network, a flat float32 vector,
    or its table, as in `pearl_devices.buffers`. statistics: mean and variance of the observations,
    float64 (2, O), where it normalises them; they stay as they are.
    """

    def __init__(
        self,
        system: System,
        kernel: Kernel,
        parameters: npt.NDArray[Any],
        statistics: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.system = system
        self.kernel = kernel
        self.parameters = parameters
        self.statistics = statistics
        self._low = np.asarray(system.env.act_low, np.float32)
        self._high = np.asarray(system.env.act_high, np.float32)

    def copy(self) -> Policy:
        """The same policy, which no training changes."""
        statistics = None if self.statistics is None else self.statistics.copy()
        return Policy(self.system, self.kernel, self.parameters.copy(), statistics)

    def act(self, obs: npt.ArrayLike) -> npt.NDArray[Any]:
        """Greedy actions for observations of shape (B, O), or one for shape (O,).

        Of a tabular policy an observation is the number of a state: shape (B,), or one of shape ().
        Discrete actions are int64 of shape (B,), continuous ones float32 of shape (B, A). Another
        number of components, or no such state, is a ValueError.
        """
        from pearl_devices.cpu import act

        size, states = self.kernel.dim("obs"), self.kernel.dims.get("states", 0)
        rows = np.asarray(obs, np.float32)
        if states:
            rows = rows[..., np.newaxis]
            if rows.size and not (rows.min() >= 0 and rows.max() < states):
                raise ValueError(
                    f"observations are {obs!r}; the policy knows states below {states}"
                )
        single = rows.ndim == 1
        rows = np.ascontiguousarray(rows.reshape(1, -1) if single else rows)
        if rows.ndim != 2 or rows.shape[1] != size:
            takes = "(B,), numbers of states" if states else f"(B, {size})"
            raise ValueError(f"observations have shape {np.shape(obs)}; the policy takes {takes}")
        if self.statistics is not None:
            rows = self._normalised(rows)
        actions = act(self.kernel, self.parameters, rows, self._low, self._high)
        return actions[0] if single else actions

    def state_dict(self) -> dict[str, torch.Tensor]:
        """`tensors` as those of torch."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.tensors().items()}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Its parameters under torch's names, copies. Dense layers are those of
        torch.nn.Sequential(Linear, ReLU or Tanh, Linear, …): `0.weight` (out, in), `0.bias`,
        `2.weight`, …; a table is one torch.nn.Embedding, `0.weight` (states, actions); a module of
        the user's own has its own names."""
        kernel, flat = self.kernel, self.parameters
        if kernel.dims.get("states"):
            return {"0.weight": flat.copy()}
        (name,) = kernel.networks
        own = kernel.modules.get(name)
        if own is not None:
            import torch

            from pearl_devices.primitives.torch_modules import named

            return {n: t.numpy().copy() for n, t in named(own, torch.from_numpy(flat)).items()}
        found: dict[str, npt.NDArray[Any]] = {}
        at = 0
        for layer, (i, o) in enumerate(pairwise(kernel.layers())):
            weights, at = flat[at : at + i * o], at + i * o
            found[f"{2 * layer}.weight"] = np.ascontiguousarray(weights.reshape(i, o).T)
            found[f"{2 * layer}.bias"] = flat[at : at + o].copy()
            at += o
        return found

    def _normalised(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        asked = self.system.algorithm.normalise
        assert self.statistics is not None
        mean, variance = self.statistics
        scaled = (rows - mean) / np.sqrt(variance + asked.epsilon)
        if asked.clip > 0:
            scaled = scaled.clip(-asked.clip, asked.clip)
        found: npt.NDArray[np.float32] = scaled.astype(np.float32)
        return found


def make_env(env_id: str, args: Mapping[str, Any], stack: int = 0) -> gymnasium.Env[Any, Any]:
    """One environment by gymnasium id or `module:callable`, with the arguments of the spec; it
    observes its last `stack` frames, where that is above 0."""
    from pearl_devices.primitives.gym_envs import stacked

    try:
        return stacked(environment(env_id, args), stack)
    except ValueError as error:
        raise UnsupportedError(f"environment {env_id!r} cannot be made: {error}") from error


@dataclass(frozen=True)
class Evaluation:
    """What greedy episodes gave. returns: undiscounted, of every episode. cut: how many episodes
    were cut after `max_steps` env steps; their returns are of the steps until then."""

    returns: tuple[float, ...]
    cut: int
    max_steps: int

    @property
    def text(self) -> str:
        """What was cut, in words; empty where nothing was."""
        if not self.cut:
            return ""
        return (
            f"{self.cut} of {len(self.returns)} episodes had not ended after {self.max_steps:,} "
            "env steps and were cut (train.evaluate_max_steps); their returns are of these steps"
        )


def evaluate(policy: Policy, episodes: int, seed: int) -> Evaluation:
    """`episodes` episodes of the greedy policy, one after another.

    Episode i starts from `reset(seed=…)` keyed by (seed, i), so equal seeds give equal episodes.
    `train.evaluate_max_steps` and `train.env_time_limit` hold. Raises EnvironmentFailed, which says
    which environment failed, when, and how.
    """
    from pearl_devices.primitives.rng import key

    system = policy.system
    max_steps = system.train.evaluate_max_steps or system.env.max_episode_steps or MAX_STEPS
    env = make_env(system.env.id, system.env.args, system.env.stack)
    asked, totals, cut = _Asked(system.env.id), [], 0
    try:
        with _limited(system, asked):
            for episode in range(episodes):
                with asked.at(episode, 0):
                    obs, _ = env.reset(seed=key(seed, f"evaluation {episode}") % 2**31)
                total, over, steps = 0.0, False, 0
                while not over and steps < max_steps:
                    action = policy.act(_as_given(env.observation_space, obs, policy.kernel))
                    steps += 1
                    with asked.at(episode, steps):
                        step = env.step(int(action) if system.env.actions else action)
                    obs, over = step[0], bool(step[2] or step[3])
                    total += float(step[1])
                totals.append(total)
                cut += not over
    finally:
        env.close()
    return Evaluation(tuple(totals), cut, max_steps)


class _Asked:
    """The environment of an evaluation, and since when (monotonic) it has been asked; None: it is
    not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.since_s: float | None = None

    @contextmanager
    def at(self, episode: int, step: int) -> Iterator[None]:
        """Meanwhile it is asked; what it raises becomes an EnvironmentFailed."""
        self.since_s = time.monotonic()
        try:
            yield
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise EnvironmentFailed(
                f"environment {self.name!r}, evaluation episode {episode}, step {step}: {text}"
            ) from error
        finally:
            self.since_s = None


@contextmanager
def _limited(system: System, asked: _Asked) -> Iterator[None]:
    """`train.env_time_limit` for an environment that is none of those with a native twin."""
    from pearl_devices.primitives.envs import NATIVE

    if asked.name in NATIVE:
        yield
        return
    environments = {"evaluation": asked}
    limit_s = system.train.env_time_limit or outside.TIME_LIMIT_S
    with outside.limited(environments, environments, limit_s):
        yield


def _as_given(space: Any, obs: Any, kernel: Kernel) -> npt.NDArray[Any]:
    """An observation as the policy takes it: flat, or of a tabular policy the number of a state."""
    from gymnasium.spaces.utils import flatten

    if kernel.dims.get("states"):
        return np.asarray(int(obs) - int(space.start))
    return np.asarray(flatten(space, obs), np.float32)
