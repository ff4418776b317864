"""A calibration made on a busy host: what of it counts, and what is timed again."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pearl
from pearl.planner import planner
from pearl.planning.estimated_costs import build_cost_table
from pearl_devices import Device, Kernel, kernel
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host import calibrate_host, calibration_updates, calibrator, measuring
from pearl_estimators.host.benchmark_kernels import CORES, draw_fit_kernels, offered_variants
from pearl_estimators.host.calibration import Calibration, CalibrationWarning, MeasuringTimeoutError
from pearl_estimators.host.calibration_file import load_calibration, locking, store
from pearl_estimators.host.calibration_updates import fit_journal
from pearl_estimators.host.linear_fit import family
from tests.calibrations import LANES, SPREAD, Child, measure, synthetic
from tests.needs import needs_torch

HOST = Device("host", "cpu", width=2, real=True, idle_power_w=10.0, active_power_w=50.0)
LEARNS = kernel(
    *("learn.ddpg",), obs=3, act=1, actor=(3, 64, 1), critic=(4, 64, 1), batch=64, steps=1,
    capacity=1000, fanout=16, prioritised=0, n_step=1,
)  # fmt: skip
two_cores = pytest.mark.skipif(CORES < 2, reason="a call on two cores needs them")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An empty cache folder of a process that has just started; machine code stays where it is."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder()))
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measuring, "run_in_child", None)
    restarted(monkeypatch)
    return monkeypatch


def restarted(patch: pytest.MonkeyPatch, *, busy: bool = False) -> None:
    """As after a start of the process, on a host that is busy or quiet now."""
    patch.setattr(calibrator, "_skipped", {})
    patch.setattr(calibrator, "_checked", set())
    patch.setattr(calibrator, "share_had", lambda cores: 0.6 if busy else 1.0)


def of_two_cores(_: Kernel, variant: str) -> float:
    """The contention of a host where a program has the second core for itself."""
    return 2.0 if variant == "native-pair" else 1.0


ENVS = ("env_step CartPole-v1", "env_step Pendulum-v1")
GROUPS = (
    "ddpg", "dqn", *ENVS, "gae", "inference.ddpg", "inference.dqn", "replay", "shared", "tabular",
)  # fmt: skip
KERNELS = [(k, v) for k in draw_fit_kernels(GROUPS) for v in offered_variants(k)]


@cache
def loaded(contention: Any = 2.0, **options: Any) -> Calibration:
    """A calibration of a few groups."""
    found = measure(1.0, kernels=KERNELS, prepare=synthetic(0.02, contention, **options))
    return replace(found, runtime=LANES)


# --- what counts


def test_every_point_keeps_the_share_of_the_cpu_that_it_had():
    found = loaded(lambda k, _: 1.6 if k.kind == "gae" else 1.0)
    assert {p.share for p in found.points if p.family == "gae"} == {1 / 1.6}
    assert {p.family for p in found.points if p.loaded} == {"gae"}
    assert {p.spread for p in found.points} == {SPREAD}
    assert Calibration.from_json(found.to_json()) == found


@two_cores
def test_calls_on_two_cores_that_had_not_both_count_in_no_fit():
    """They seem 50 times as long, for one side waits for the other."""

    def fifty(_: Kernel, variant: str) -> float:
        return 50.0 if variant == "native-pair" else 1.0

    found = loaded(of_two_cores, times=fifty)
    assert {p.variant for p in found.points if p.loaded} == {"native-pair"}
    assert "native-pair" not in {f.variant for f in found.fits}
    assert found.find(LEARNS, "native") is not None
    assert found.apart_s == 0.0
    assert len(found.groups) == len(loaded(1.0).groups)  # not lacking, but to be timed again


@two_cores
@needs_torch
def test_a_plan_has_no_variant_that_was_not_timed_beside_one_that_was(fresh):
    store(loaded(of_two_cores))
    restarted(fresh, busy=True)
    assert variants_of("learn") == {"native", "torch"}
    store(loaded(1.0))
    restarted(fresh, busy=True)
    assert variants_of("learn") == {"native", "native-pair", "torch"}


def variants_of(task: str) -> set[str]:
    system = pearl.load("ddpg_pendulum", set={"limits.max_lanes": 2})
    graph = planner.build_problem(system).graph
    return {m.variant for m in build_cost_table(graph, system.platform, system.limits).of(task)}


def test_where_none_was_timed_the_backends_first_variant_stays(fresh):
    known = measure(1.0, kernels=KERNELS[:20], prepare=synthetic())
    offered = ["native", "native-pair", "torch"]
    update = next(k for k, _ in KERNELS if k.kind == "update.ddpg")
    assert calibrator.comparable_variants(known, update, offered) == ["native"]
    assert calibrator.comparable_variants(known, update, ["torch"]) == ["torch"]
    assert calibrator.comparable_variants(known, update, ["torch-bf16", "native"]) == ["torch-bf16"]
    mine = replace(known, skipped={"update.ddpg native": "cannot be bound"})
    assert calibrator.comparable_variants(mine, update, ["native", "torch"]) == ["native"]
    other = kernel("env_step", program="Nowhere-v5", envs=4, obs=105, act=8)
    assert calibrator.comparable_variants(known, other, ["gymnasium", "envpool"]) == [
        "gymnasium",
        "envpool",
    ]


def test_what_lanes_cost_is_measured_by_the_runtime(monkeypatch):
    runtime = import_module(calibrate_host.RUNTIME)
    monkeypatch.setattr(runtime, "measure_overhead", lambda: LANES)
    assert calibrate_host._runtime(0.0, None, lambda cores: 1.0) == LANES


def test_lanes_are_planned_at_assumed_costs_and_said_so_until_they_are_measured(fresh):
    system = pearl.load("dqn_cartpole", set={"limits.max_lanes": 2})
    store(replace(loaded(1.0), runtime={}))
    restarted(fresh, busy=True)
    cost = planner.lane_overhead(system)
    assert {name: cost[name] for name in LANES} == planner.ASSUMED_LANE_OVERHEAD
    assert planner.ASSUMED_OVERHEAD_NOTE in (pearl.plan(system).note or "")
    store(loaded(1.0))
    restarted(fresh, busy=True)
    assert planner.ASSUMED_OVERHEAD_NOTE not in (pearl.plan(system).note or "")


# --- timed again


def test_what_was_timed_under_load_is_timed_again_at_a_quiet_start(fresh):
    before = loaded(lambda k, _: 1.6 if family(k) == "inference.dqn" else 1.0)
    store(before)
    acts = next(k for k, _ in KERNELS if k.kind == "inference.dqn")
    restarted(fresh, busy=True)
    assert calibrator.calibration(HOST, [acts]) == before
    other = next(k for k, _ in KERNELS if k.kind == "update.dqn")
    restarted(fresh)
    assert calibrator.calibration(HOST, [other]) == before  # not needed: not timed again
    restarted(fresh)
    child = Child(synthetic(times=2.0))
    fresh.setattr(measuring, "run_in_child", child)
    count = sum(p.loaded for p in before.points)
    with pytest.warns(CalibrationWarning, match=rf"idle: timing again {count} kernels timed under"):
        found = calibrator.calibration(HOST, [acts])
    assert (child.asked, child.points) == ([["inference.dqn"]], [count])
    assert child.limits == [calibrator.RETIME_LIMIT_S]
    assert not any(p.loaded for p in found.points)
    assert found == load_calibration() == calibrator.calibration(HOST, [acts])
    assert {p.family for p in found.points if p not in before.points} == {"inference.dqn"}
    assert not found.noisy


def test_a_timing_under_load_replaces_only_one_under_more(fresh):
    worse, better = loaded(2.0), loaded(1.6, times=3.0)

    def told(by: Calibration) -> list[dict[str, Any]]:
        return [{"point": {**vars(p), "terms": dict(p.terms)}} for p in by.points]

    assert fit_journal(worse, told(better)).points[0] == better.points[0]
    assert fit_journal(better, told(worse)).points[0] == better.points[0]
    quiet = loaded(1.0, times=5.0)
    assert fit_journal(better, told(quiet)).points[0] == quiet.points[0]
    assert fit_journal(quiet, told(better)).points[0] == quiet.points[0]


def test_timing_again_that_runs_out_of_time_keeps_what_it_has_and_the_rest_as_it_was(fresh):
    before = loaded()
    store(before)
    why = MeasuringTimeoutError("measuring this host took more than 60 s and was ended")
    fresh.setattr(measuring, "run_in_child", Child(synthetic(times=2.0), most=7, error=why))
    with pytest.warns(CalibrationWarning, match="was ended; kernels not timed again keep their"):
        found = calibrator.calibration(HOST)
    assert len(found.points) == len(before.points)
    assert sum(not p.loaded for p in found.points) == 7
    assert found.groups == before.groups


def test_what_lanes_cost_is_measured_at_a_quiet_start_where_it_never_was(fresh):
    store(replace(loaded(1.0), runtime={}))
    fresh.setattr(measuring, "run_in_child", Child())
    fresh.setattr(calibrator, "CORES", 2)
    with pytest.warns(CalibrationWarning, match="timing again the costs of lanes"):
        assert calibrator.calibration(HOST).runtime == LANES


# --- in doubt


UPDATE = next(k for k, _ in KERNELS if k.kind == "update.dqn")


def test_a_family_that_a_run_contradicts_is_timed_again_and_corrected(fresh):
    before = loaded(1.0)
    store(before)
    assert calibration_updates.mark_doubtful({"update.dqn native": 1.8, "no such native": 3.0}) == [
        "update.dqn native"
    ]
    assert calibration_updates.mark_doubtful({"update.dqn native": 1.75}) == []
    known = load_calibration()
    assert known is not None
    assert known.doubts == {"update.dqn native": 1.8}
    fit = known.find(UPDATE, "native")
    assert fit is not None
    restarted(fresh, busy=True)
    said = pearl.estimate(UPDATE, HOST, variant="native")
    assert "in doubt: a run took 1.80 x the estimate" in said.source
    restarted(fresh)
    child = Child(synthetic(0.02, times=1.8))
    fresh.setattr(measuring, "run_in_child", child)
    with pytest.warns(CalibrationWarning, match=r"timing again 14 kernels contradicted by a run"):
        found = calibrator.calibration(HOST, [UPDATE])
    assert child.points == [sum(p.named == "update.dqn native" for p in before.points)]
    assert (found.doubts, found.upheld) == ({}, {})
    changed = {p.named for p in found.points if p not in before.points}
    assert changed == {"update.dqn native"}


def test_a_family_that_has_not_changed_is_upheld_and_such_a_run_no_new_doubt(fresh):
    store(loaded(1.0))
    calibration_updates.mark_doubtful({"update.dqn native": 1.8})
    fresh.setattr(measuring, "run_in_child", Child(synthetic(0.02, seed=7)))
    found = calibrator.calibration(HOST, [UPDATE])
    assert (found.doubts, found.upheld) == ({}, {"update.dqn native": 1.8})
    assert calibration_updates.mark_doubtful({"update.dqn native": 1.7}) == []
    assert calibration_updates.mark_doubtful({"update.dqn native": 0.5}) == ["update.dqn native"]


@pytest.mark.parametrize(("before", "then"), [(1.0, 1.5), (2.0, 1.5)])
def test_a_doubt_stays_until_all_points_of_its_family_were_timed_again_in_quiet(
    fresh, before, then
):
    """Also where they were timed again under less load than before."""
    store(loaded(before))
    calibration_updates.mark_doubtful({"update.dqn native": 1.8})
    fresh.setattr(measuring, "run_in_child", Child(synthetic(contention=then)))
    found = calibrator.calibration(HOST, [UPDATE])
    assert (found.doubts, found.upheld) == ({"update.dqn native": 1.8}, {})
    shares = {p.share for p in found.points if p.named == "update.dqn native"}
    assert shares == {1 / min(before, then)}


def test_no_doubt_waits_for_a_process_that_measures_nor_needs_a_calibration(fresh):
    assert calibration_updates.mark_doubtful({"update.dqn native": 1.8}) == []
    store(loaded(1.0))
    fresh.setattr(calibration_updates, "WAIT_S", 0.05)
    with locking(1.0):
        assert calibration_updates.mark_doubtful({"update.dqn native": 1.8}) == []


def test_a_run_marks_what_it_contradicts(fresh):
    """The imagined machine is a thousand times as slow as this one, so that every run is faster."""
    store(loaded(1.0, times=1000.0))
    restarted(fresh, busy=True)
    spec = {"limits.max_lanes": 1, "train.steps": 400, "train.evaluate_every": 0}
    trainer = pearl.compile("sarsa_cliffwalking", set=spec)
    trainer.train()
    known = load_calibration()
    assert known is not None
    assert known.doubts
    assert all(factor < 0.5 for factor in known.doubts.values())
    marked = dict(known.doubts)
    again = pearl.Trainer(trainer.system, replace(trainer.plan, problem=None), seed=0)
    store(replace(known, doubts={}))
    again.train()  # by a plan from a file, whose estimates may be another calibration's
    known = load_calibration()
    assert known is not None
    assert (marked != {}, dict(known.doubts)) == (True, {})


# --- one lane on one CPU


@pytest.mark.parametrize(("lanes", "measured"), [(1, False), (2, True)])
def test_one_lane_on_one_cpu_is_planned_to_be_trained_without_timing(fresh, lanes, measured):
    child = Child()
    fresh.setattr(measuring, "run_in_child", child)
    fresh.setattr(calibrator, "CORES", 2)
    system = pearl.load("dqn_cartpole", set={"limits.max_lanes": lanes})
    system = replace(system, platform=replace(system.platform, devices=(wide(system),)))
    with planner.skipping_timing_if_busy(system):
        plan = pearl.plan(system)
    assert bool(child.asked) == measured
    assert ("calibrated" in {t.rung for t in plan.tasks}) == measured
    assert {t.variant for t in plan.tasks} == {"native"}
    assert (planner.ONE_LANE in (plan.note or "")) == (not measured)
    if not measured:  # later, as for any other plan, what it needs is timed
        assert "calibrated" in {t.rung for t in pearl.plan(system).tasks}
        assert child.asked


def test_points_under_load_are_not_timed_again_for_one_lane(fresh):
    store(loaded())
    system = pearl.load("dqn_cartpole", set={"limits.max_lanes": 1})
    with planner.skipping_timing_if_busy(system):
        assert "calibrated" in {t.rung for t in pearl.plan(system).tasks}  # `in_child` is None


def wide(system: Any) -> Device:
    """The CPU of this host, with two cores."""
    cpu: Device = replace(system.platform.devices[0], width=2, max_lanes=2)
    return cpu
