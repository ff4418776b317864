"""Timing environments of the user's own: those that wait, and those that start processes."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import pytest

import pearl
from pearl_devices import kernel
from pearl_estimators.host import user_code_timing
from pearl_estimators.host.user_code_timing import time_user_env

SLEEP_S = 4e-3


class Sleeper(gymnasium.Env[Any, Any]):
    """Waits SLEEP_S in every step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(SLEEP_S)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, False, {}


def Several(num_envs: int) -> Any:
    """A vector environment whose processes wait at the same time."""
    return gymnasium.vector.AsyncVectorEnv([Sleeper] * num_envs)


def test_a_vector_environment_with_processes_is_timed_and_not_taken_from_the_data_sheet() -> None:
    """A process that is forked by the one that times closes its standard input."""
    k = kernel("env_step", {"envs": 4, "obs": 2, "act": 0}, program=f"{__name__}:Several")
    found = time_user_env(k, "gymnasium")
    assert found.rung == "measured"
    assert found.latency_s > 0.9 * SLEEP_S


def timed(step_s: float, cpu_s: float) -> Any:
    """Stands for `user_code_timing._timed`: an environment's step takes so long, cpu_s of it
    computing; in processes all wait at the same time, and each answer takes 20 us more."""

    def rows(kernels: Any, variant: str) -> Any:
        found = []
        for k in kernels:
            n = k.dim("envs")
            in_turn = variant == "gymnasium"
            seconds = n * step_s if in_turn else step_s + 2e-5 * n
            found.append((seconds, seconds, seconds, n * cpu_s if in_turn else 1e-4))
        return found

    return rows


def planned(variants: list[str] | None = None) -> Any:
    spec = {
        "algorithm": {"name": "ppo", "env": f"{__name__}:Sleeper", "num_envs": 16},
        "limits": {"variants": {"env_step": variants}} if variants else {},
    }
    return pearl.plan(pearl.load(spec))


def test_environments_that_wait_get_processes_and_those_that_compute_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_code_timing, "_timed", timed(8e-3, 0.1e-3))
    plan, in_turn = planned(), planned(["gymnasium"])
    step = plan.task("env_step")
    assert step.variant == "processes"
    assert step.seconds == pytest.approx(8e-3 + 16 * 2e-5)
    assert plan.rates["env_steps_per_s"] > 8 * in_turn.rates["env_steps_per_s"]
    monkeypatch.setattr(user_code_timing, "_timed", timed(8e-3, 7e-3))
    assert planned().task("env_step").variant == "gymnasium"
    assert planned(["processes"]).task("env_step").variant == "processes"


def test_environments_that_cannot_be_timed_in_processes_keep_their_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As vector environments do, which processes refuse."""
    in_turn = timed(8e-3, 0.1e-3)

    def refused(kernels: Any, variant: str) -> Any:
        return "a vector environment" if variant == "processes" else in_turn(kernels, variant)

    monkeypatch.setattr(user_code_timing, "_timed", refused)
    assert planned().task("env_step").variant == "gymnasium"


def test_what_environments_compute_together_is_not_less_than_the_cores_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_code_timing, "CORES", 2)
    monkeypatch.setattr(user_code_timing, "_timed", timed(8e-3, 2e-3))
    k = kernel("env_step", {"envs": 16, "obs": 2, "act": 0}, program=f"{__name__}:Sleeper")
    assert user_code_timing.waiting_share(k) == pytest.approx(0.75)
    found = time_user_env(k, "processes")
    assert found.latency_s == pytest.approx(16 * 2e-3 / 2)
    assert "alone one waits 75% of a step" in found.source
