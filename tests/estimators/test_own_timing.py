"""Timing environments of the user's own: those that wait, and those that start processes."""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import pytest

import pearl
from pearl_devices import Kernel, kernel
from pearl_estimators.host import user_code_timing
from pearl_estimators.host.user_code_timing import time_user_env
from pearl_estimators.sealed_files import CalibrationError

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


class Hanging(Sleeper):
    """Its third step does not end."""

    def step(self, action: Any) -> Any:
        self.done = getattr(self, "done", 0) + 1
        time.sleep(1000.0 if self.done == 3 else 0.0)
        return super().step(action)


class Asking(Sleeper):
    """Reads standard input in each step."""

    def step(self, action: Any) -> Any:
        assert sys.stdin.read(1) == ""
        return super().step(action)


def Several(num_envs: int) -> Any:
    """A vector environment whose processes wait at the same time."""
    return gymnasium.vector.AsyncVectorEnv([Sleeper] * num_envs)


def test_a_vector_environment_with_processes_is_timed_and_not_taken_from_the_data_sheet() -> None:
    """A process that is forked by the one that times closes its standard input."""
    k = kernel("env_step", {"envs": 4, "obs": 2, "act": 0}, program=f"{__name__}:Several")
    found = time_user_env(k, "gymnasium")
    assert found.rung == "measured"
    assert found.latency_s > 0.9 * SLEEP_S


def test_a_step_that_hangs_is_timed_no_longer_than_a_run_would_wait(
    user_code_in_a_process: None,
) -> None:
    k = kernel("env_step", {"envs": 1, "obs": 2, "act": 0}, program=f"{__name__}:Hanging")
    begin_s = time.monotonic()
    with (
        user_code_timing.limiting_steps(0.5),
        pytest.raises(CalibrationError, match=r"step 3: .*0\.5 s \(train\.env_time_limit\)"),
    ):
        time_user_env(k, "gymnasium")
    assert time.monotonic() - begin_s < user_code_timing.TIMEOUT_S / 2


def test_an_environment_that_reads_its_input_finds_it_empty(user_code_in_a_process: None) -> None:
    """The input of the process that times is the parent's life line."""
    k = kernel("env_step", {"envs": 1, "obs": 2, "act": 0}, program=f"{__name__}:Asking")
    assert time_user_env(k, "gymnasium").latency_s > 0.9 * SLEEP_S


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
        "limits": {"variants": {"step": variants}} if variants else {},
    }
    return pearl.plan(pearl.load(spec))


def test_environments_that_wait_get_processes_and_those_that_compute_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_code_timing, "_timed", timed(8e-3, 0.1e-3))
    plan, in_turn = planned(), planned(["gymnasium"])
    step = plan.task("step")
    assert step.variant == "processes"
    assert step.seconds == pytest.approx(8e-3 + 16 * 2e-5)
    assert plan.rates["env_steps_per_s"] > 8 * in_turn.rates["env_steps_per_s"]
    monkeypatch.setattr(user_code_timing, "_timed", timed(8e-3, 7e-3))
    assert planned().task("step").variant == "gymnasium"
    assert planned(["processes"]).task("step").variant == "processes"


def test_environments_that_cannot_be_timed_in_processes_keep_their_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As vector environments do, which processes refuse."""
    in_turn = timed(8e-3, 0.1e-3)

    def refused(kernels: Any, variant: str) -> Any:
        return "a vector environment" if variant == "processes" else in_turn(kernels, variant)

    monkeypatch.setattr(user_code_timing, "_timed", refused)
    assert planned().task("step").variant == "gymnasium"


STEPPED = kernel("env_step", {"envs": 16, "obs": 2, "act": 0}, program=f"{__name__}:Sleeper")


@pytest.mark.parametrize(
    ("variant", "few", "many", "in_turn", "seconds"),
    [
        # One more takes (9 - 3) / 3 s; the least and the most of the blocks grow as much. The band
        # is at least a factor of 1.3 on each side.
        ("gymnasium", (3.0, 1.5, 5.0), (9.0, 7.5, 14.0), 0.0, (33.0, 33 / 1.3, 50.0)),
        ("gymnasium", (3.0, 1.0, 3.0), (9.0, 4.0, 9.0), 0.0, (33.0, 16.0, 33 * 1.3)),
        ("gymnasium", (8.0, 8.0, 8.0), (5.0, 5.0, 5.0), 0.0, (8.0, 8 / 1.3, 8 * 1.3)),
        ("gymnasium", (0.5, 0.5, 0.5), (6.5, 6.5, 6.5), 0.0, (32.0, 32 / 1.3, 32 * 1.3)),
        ("gymnasium", (1.0, -9.0, 1.0), (4.0, -9.0, 4.0), 0.0, (16.0, 0.0, 16 * 1.3)),
        ("processes", (8.0, 8.0, 8.0), (8.0, 8.0, 8.0), 2.0, (16.0, 16 / 1.3, 16 * 1.3)),
        ("processes", (8.0, 7.0, 9.0), (8.0, 7.0, 9.0), 0.5, (8.0, 8 / 1.3, 8 * 1.3)),
    ],
)  # fmt: skip
def test_environments_are_estimated_from_the_timings_of_one_and_of_four(
    monkeypatch: pytest.MonkeyPatch, variant: str, few: Any, many: Any, in_turn: float, seconds: Any
) -> None:
    def rows(kernels: tuple[Kernel, ...], how: str) -> Any:
        assert [k.dim("envs") for k in kernels] == [1, 4]
        assert {k.flops + k.bytes_in + k.bytes_out + k.resident_bytes for k in kernels} == {0.0}
        return (
            [(*few, in_turn), (*many, 99.0)] if how == variant else [(8.0, 8.0, 8.0, in_turn)] * 2
        )

    monkeypatch.setattr(user_code_timing, "CORES", 2)
    monkeypatch.setattr(user_code_timing, "_timed", rows)
    found = time_user_env(STEPPED, variant)
    assert (found.latency_s, found.low_s, found.high_s) == pytest.approx(seconds)
    assert (found.rung, found.bound_by) == ("measured", "overhead")
    more = f", each in a process; alone one waits {1 - in_turn / 8:.0%} of a step"
    how = f"{STEPPED.program} timed on this host with 1 and 4 environments"
    assert found.source.startswith(how + (more if variant == "processes" else ""))
    assert found.source.endswith("band at least ×/÷ 1.3, assumed")


@pytest.mark.parametrize(
    ("step", "processes", "share", "gains"),
    [
        ((4.0, 3.0, 5.0, 2.0), True, 0.5, True), ((4.0, 3.0, 5.0, 2.1), True, 0.475, False),
        ((4.0, 3.0, 5.0, 9.0), True, 0.0, False), ((0.0, 0.0, 0.0, 0.0), True, 0.0, False),
        ((4.0, 3.0, 5.0, 1.0), False, 0.75, False), ("no timing", True, 0.0, False),
    ],
)  # fmt: skip
def test_environments_that_wait_half_of_a_step_gain_by_processes(
    monkeypatch: pytest.MonkeyPatch, step: Any, processes: bool, share: float, gains: bool
) -> None:
    def rows(_: Any, variant: str) -> Any:
        if variant == "processes" and not processes:
            return "a vector environment"
        return step if isinstance(step, str) else [step, (99.0, 99.0, 99.0, 1.0)]

    monkeypatch.setattr(user_code_timing, "_timed", rows)
    assert user_code_timing.waiting_share(STEPPED) == pytest.approx(share)
    assert user_code_timing.gains_by_processes(STEPPED) is gains


@pytest.mark.parametrize(
    ("kind", "how"), [("segv", r"signal 11 \(segmentation fault\)"), ("exit", "exit status 7")]
)
def test_a_timing_whose_process_dies_is_told_and_remembered(
    kind: str, how: str, user_code_in_a_process: None, caplog: pytest.LogCaptureFixture
) -> None:
    program = "tests.runtime.bad_envs:Bad"
    dims = {"envs": 1, "obs": 3, "act": 0}
    own = kernel("env_step", dims, program=program, args={"kind": kind, "at": 1})
    with caplog.at_level(logging.INFO, logger="pearl"), pytest.raises(CalibrationError, match=how):
        user_code_timing.time_user_kernel(own, "gymnasium")
    begun, failed = (record.getMessage() for record in caplog.records)
    assert begun.startswith(f"timing environment '{program}'")
    assert re.search(rf"timing environment '{program}' failed: .*{how}", failed)
    assert re.search(how, user_code_timing.failed_timings[program])


def test_a_timing_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def child(*given: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return {"unstored": {}, "failed": {}, "cpu_s": 0.0}

    monkeypatch.setattr(user_code_timing, "run_in_child", child)
    monkeypatch.setattr(user_code_timing, "NAMED_S", 0.05)
    own = kernel("env_step", {"envs": 3, "obs": 2, "act": 0}, program="m:Late")
    with (
        caplog.at_level(logging.WARNING, logger="pearl"),
        pytest.raises(CalibrationError, match="gave no result"),
    ):
        user_code_timing.time_user_kernel(own, "gymnasium")
    (record,) = caplog.records
    assert "timing environment 'm:Late' has not answered" in record.getMessage()
