"""Evaluation of a policy on the environment that its spec names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl.algorithms.evaluation import kernel_of, max_steps
from pearl.runtime.environments import external_envs
from pearl.spec.user_code import reporting_user_errors
from pearl.training.policy import Policy
from pearl_devices import Buffers, Kernel, cpu
from pearl_devices.buffers import allocate
from pearl_devices.kernels.evaluation import policy_of
from pearl_devices.primitives.envs.global_generators import generators_from

if TYPE_CHECKING:
    from pearl.spec.system import System

STRIDE = 64
"""Vector steps between two checks for signals, if an evaluation runs without interruption."""


@dataclass(frozen=True)
class Evaluation:
    """The result of greedy episodes.

    returns: undiscounted, one for each episode; for a cut episode, the return until the cut.
    cut: number of episodes that were cut after `max_steps` env steps.
    max_steps: the limit of an episode in env steps.
    """

    returns: tuple[float, ...]
    cut: int
    max_steps: int

    @property
    def text(self) -> str:
        """A sentence about the episodes that were cut; empty if there are none."""
        if not self.cut:
            return ""
        return (
            f"{self.cut} of {len(self.returns)} episodes had not ended after {self.max_steps:,} "
            "env steps and were cut (train.evaluate_max_steps); their returns are of these steps"
        )


class EpisodePlayer:
    """Plays episodes of the policies of one system, all at the same time.

    Close it: external environments serve all of its evaluations.
    """

    def __init__(self, system: System, acting: Kernel) -> None:
        self._system, self._acting = system, acting
        self._bound: dict[int, tuple[Buffers, Any]] = {}

    def close(self) -> None:
        """End the environments."""
        for _, call in self._bound.values():
            call.close()
        self._bound.clear()

    def evaluate(self, policy: Policy, episodes: int, seed: int) -> Evaluation:
        """Play `episodes` episodes of the greedy policy in lock-step.

        Episode i starts from `reset(seed=…)` keyed by (seed, i), so equal seeds give equal
        episodes, also of environments that draw from `random` or `numpy.random`.
        `train.evaluate_max_steps` and `train.env_time_limit` hold.

        Raises:
            EnvironmentFailed: which environment failed, when, and how.
        """
        if not episodes:
            return Evaluation((), 0, 0)
        system = self._system
        limit_s = system.train.env_time_limit or external_envs.TIME_LIMIT_S
        try:
            with reporting_user_errors(system, "the policy"):
                arrays, call = self.bind(episodes)
                arrays[policy_of(call.kernel)[0]][:] = policy.parameters
                for name, array in policy.states.items():
                    arrays[name][...] = array
                environments = {"evaluation": call} if hasattr(call, "since_s") else {}
                with limiting_env_steps(environments, limit_s), generators_from(seed):
                    call.begin(seed)
                    while call.playing:
                        call.play(STRIDE)
        except BaseException:  # also a signal: environments are in the middle of a step
            self.close()
            raise
        returns, cut = arrays["evaluation.returns"], arrays["evaluation.cut"]
        return Evaluation(tuple(returns.tolist()), int(cut.sum()), max_steps(system))

    def bind(self, episodes: int) -> tuple[Buffers, Any]:
        """Return the arrays and the call that play `episodes` episodes; bind them once."""
        if episodes not in self._bound:
            self._bound[episodes] = self._bind(episodes)
        return self._bound[episodes]

    def _bind(self, episodes: int) -> tuple[Buffers, Any]:
        system, env = self._system, self._system.env
        kernel = kernel_of(system, self._acting, episodes)
        arrays = allocate([kernel])
        for name in ("low", "high", "choices"):
            if f"act.{name}" in arrays:
                values = env.choices if name == "choices" else getattr(env, f"act_{name}")
                arrays[f"act.{name}"][:] = values
        if "normalise.options" in arrays:
            asked = system.algorithm.normalise
            arrays["normalise.options"][:2] = asked.clip, asked.epsilon
        variant, _ = cpu.offers(kernel, cpu.ONE_CORE)[0]
        return arrays, cpu.bind(kernel, variant, arrays)


@contextmanager
def limiting_env_steps(
    environments: Mapping[str, external_envs.SteppedEnvs], limit_s: float
) -> Iterator[None]:
    """Within this context, apply `train.env_time_limit` to environments that this thread steps."""
    if not environments:
        yield
        return
    from pearl.runtime.environments import watchdog

    with watchdog.env_time_limit(environments, environments, limit_s):
        yield


def evaluate(policy: Policy, episodes: int, seed: int) -> Evaluation:
    """Evaluate a policy once; see `EpisodePlayer.evaluate`."""
    player = EpisodePlayer(policy.system, policy.kernel)
    try:
        return player.evaluate(policy, episodes, seed)
    finally:
        player.close()
