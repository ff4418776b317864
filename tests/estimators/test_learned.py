"""What finished runs teach: factors of estimates, who counts, and what a plan says then."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

import pearl
from pearl.planner import planner
from pearl.planning.runs import Drift
from pearl.training.run_feedback import calibration_feedback
from pearl_devices import Device, kernel
from pearl_estimators.cpu import estimate_without_feedback, parts
from pearl_estimators.estimates import Estimate
from pearl_estimators.host import calibration_updates
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.calibration_file import load_calibration, store
from pearl_estimators.host.run_corrections import (
    BAND_FLOOR,
    IterationStats,
    KernelShare,
    apply_correction,
    merge_runs,
    predict_factor,
)
from pearl_estimators.host.user_code_timing import time_user_env
from tests.estimators.test_calibration_load import fresh, loaded

__all__ = ["fresh"]

HOST = Device("host", "cpu", width=2, real=True)
A = KernelShare("iteration.dqn native", 2.0**20, 2.0**16)
WIDER = replace(A, flops=2.0**21, bytes=2.0**17)
OTHER = replace(A, named="update.sac native")
FAR = KernelShare("env_step native", 2.0**12, 2.0**9, 0.7)


def alike(a: tuple[KernelShare, ...], b: tuple[KernelShare, ...]) -> float:
    """The covariance of two iterations by its definition: a third each of the host, of the family
    and of the sizes, whose part falls to 1/e over four doublings."""
    total = 0.0
    for p, q in itertools.product(a, b):
        far = abs(math.log2((1 + p.flops) / (1 + q.flops)))
        far += abs(math.log2((1 + p.bytes) / (1 + q.bytes)))
        total += p.share * q.share * (1 + (p.named == q.named) * (1 + math.exp(-far / 4))) / 3
    return total


@pytest.mark.parametrize(("timed", "spread"), [(True, 0.15), (False, 0.48)])
@pytest.mark.parametrize("asked", [(A,), (WIDER,), (OTHER,), (replace(A, share=0.3), FAR)])
def test_factors_are_the_expectation_of_the_gaussian_process(asked, timed, spread):
    """Of two runs, by the inverse of a matrix of two rows; a run of the other sort says nothing."""
    first = IterationStats((replace(A, share=0.9), replace(OTHER, share=0.1)), 0.2, 2.0, timed)
    second = IterationStats((WIDER,), -0.1, timed=timed)
    other = IterationStats((A,), 5.0, timed=not timed)
    noise = (0.02 / spread) ** 2
    a, d = alike(first.parts, first.parts) + noise / 2, alike(second.parts, second.parts) + noise
    c = alike(first.parts, second.parts)
    u, v = alike(asked, first.parts), alike(asked, second.parts)
    mean = ((d * u - c * v) * 0.2 + (a * v - c * u) * -0.1) / (a * d - c * c)
    known = (d * u * u - 2 * c * u * v + a * v * v) / (a * d - c * c)
    own = alike(asked, asked)
    found = predict_factor((first, other, second), asked, timed=timed)
    assert found == pytest.approx((mean, spread * math.sqrt(own - known)), rel=1e-9)
    alone = predict_factor((other,), asked, timed=timed)
    assert alone == (0.0, pytest.approx(spread * math.sqrt(own)))


def test_a_correction_scales_an_estimate_and_narrows_its_band_to_what_runs_leave_open():
    said = Estimate(1e-3, 8e-4, low_s=0.5e-3, high_s=2e-3, rung="calibrated", source="a fit")
    seen = (IterationStats((A,), math.log(1.1)),)
    mean, spread = predict_factor(seen, [OTHER])
    by, half = math.exp(mean), math.exp(1.6449 * spread)
    other = apply_correction(said, seen, [OTHER])
    seconds = (other.latency_s, other.occupancy_s, other.low_s, other.high_s)
    assert seconds == pytest.approx((by * 1e-3, by * 8e-4, by * 1e-3 / half, by * 1e-3 * half))
    own = apply_correction(said, seen, [A])
    assert own.high_s / own.latency_s == pytest.approx(math.exp(BAND_FLOOR))
    assert own.latency_s / own.low_s == pytest.approx(math.exp(BAND_FLOOR))
    assert own.source == "a fit; times 1.1, as runs on this host took"
    sharp = replace(said, low_s=0.99e-3, high_s=1.01e-3)
    kept = apply_correction(sharp, seen, [OTHER])
    assert (kept.low_s, kept.high_s) == pytest.approx((by * 0.99e-3, by * 1.01e-3))


QUIET = IterationStats((A,), 0.10)


def test_the_mean_of_runs_follows_a_host_that_has_changed():
    found, expected = QUIET, []
    for _ in range(5):
        found = merge_runs(found, replace(QUIET, off=-0.2))
        expected.append((found.off, found.runs))
    offs, runs = zip(*expected, strict=True)
    assert offs == pytest.approx((-0.05, -0.1, -0.125, -0.14375, -0.1578125))
    assert runs == (2, 3, 4, 4, 4)
    assert merge_runs(None, QUIET) == QUIET


def test_a_run_by_the_data_sheet_is_kept_without_a_calibration_and_corrects_it(fresh):
    system = pearl.load("dqn_cartpole", set={"limits.max_lanes": 1})
    with planner.skipping_timing_if_busy(system):
        plan, graph = pearl.plan(system), planner.build_problem(system).graph
        assert {t.rung for t in plan.tasks} == {"datasheet"}
        wall_s = 1.5 * plan.period_s
        drift = Drift(plan.period_s, wall_s, 0.5, (), waited=0.0)
        (seen,), said = calibration_feedback(plan, graph, system.platform, drift, {"wall_s": 2.0})
        assert said == ("Learned from this run: its calls took 1.500 times their estimates.",)
        assert (seen.timed, seen.off) == (False, pytest.approx(math.log(1.5)))
        assert calibration_updates.record_run(seen)
        again = pearl.plan(system)
        assert again.period_s / plan.period_s == pytest.approx(1.5, abs=0.1)
        assert {t.rung for t in again.tasks} == {"datasheet"}


def test_it_is_kept_with_the_calibration_and_changes_estimates_and_plans(fresh):
    store(loaded(1.0))
    system = pearl.load("dqn_cartpole", set={"limits.max_lanes": 1})
    before = pearl.plan(system)
    call = {before.tasks[0].task, *before.tasks[0].fused_with}
    graph = planner.build_problem(system).graph
    whole = next(f.kernel for f in graph.fusions if {*f.tasks} == call)
    assert len(call) == len(before.tasks)
    new = IterationStats(parts(whole, HOST, "native", 1), math.log(1.2))
    assert calibration_updates.record_run(new)
    assert not calibration_updates.record_run(new)
    known = load_calibration()
    assert known is not None
    assert known.learned == (new,)
    assert Calibration.from_json(known.to_json()) == known
    after = pearl.plan(system)
    assert {after.tasks[0].task, *after.tasks[0].fused_with} == call
    assert after.period_s / before.period_s == pytest.approx(1.2, abs=0.02)
    now, base = (
        pearl.estimate(whole, HOST, variant="native"),
        estimate_without_feedback(whole, HOST, "native", 1),
    )
    assert now.latency_s / base.latency_s == pytest.approx(1.2, abs=0.01)


def test_a_family_timed_again_that_has_changed_forgets_what_runs_took(fresh):
    known = loaded(1.0)
    name = next(p.named for p in known.points)
    mine = replace(QUIET, parts=(replace(A, named=name),))
    before = replace(known, learned=(mine, QUIET))
    slower = (replace(p, seconds=1.3 * p.seconds) if p.named == name else p for p in known.points)
    after = calibration_updates.merge_retimed(before, replace(before, points=tuple(slower)))
    assert after.learned == (QUIET,)
    assert calibration_updates.merge_retimed(before, before).learned == before.learned


@pytest.mark.usefixtures("user_code_in_a_process")
def test_an_environment_is_timed_with_the_ends_of_its_episodes(tmp_path: Path):
    """Two of its three actions end an episode, which costs 2 ms; one and the same action for ever
    ends all or none."""
    args = {"reset_us": 2000, "seen": str(tmp_path / "seen")}
    k = kernel("env_step", {"envs": 1, "obs": 1, "act": 0}, program=f"{__name__}:Pit", args=args)
    found = time_user_env(k, "gymnasium")
    steps = (tmp_path / "seen").read_text()
    assert len(steps) > 50
    assert steps.count("e") / len(steps) == pytest.approx(2 / 3, abs=0.2)
    assert found.latency_s > 0.9e-3


def Pit(reset_us: float, seen: str):
    """An environment whose action 0, and no other, leaves the episode going. It writes a letter a
    step into the file `seen`: e where an episode ends."""
    import time

    import gymnasium
    import numpy as np

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            time.sleep(reset_us * 1e-6)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            with Path(seen).open("a") as file:
                file.write("e" if action else "s")
            return np.zeros(1, np.float32), 0.0, bool(action), False, {}

    return Env()
