"""Several threads of torch on this host: timed by two where two cores are free, and wider told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.planning.draws import _uncertainty
from pearl_devices import Device, base, cpu, kernel
from pearl_estimators import Estimate, estimate
from pearl_estimators.cpu_datasheet import scale_threads
from pearl_estimators.host import benchmark_kernels, calibrator, timer
from pearl_estimators.host.benchmark_kernels import THREADS, threaded_families, threaded_kernels
from pearl_estimators.host.timer import time_call
from tests.calibrations import measure, synthetic

CPU = Device("cpu", "cpu", width=16, real=True, peak_flops_per_s=16e11, memory_bytes_per_s=1e11)
WIDE = kernel(
    *("update.dqn",), program="pearl.algorithms.dqn:losses", obs=4, act=0, q=(4, 512, 512, 2),
    batch=512, steps=1, double=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_kernels, "CORES", 2)


def test_a_call_whose_threads_sleep_is_timed_by_the_wall_where_none_waited_for_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, queued, calls = [0.0], [0.0], [0]

    def call() -> None:
        calls[0] += 1
        waits = calls[0] % 3 == 0
        now[0] += 3e-3 if waits else 1e-3
        queued[0] += 2e-3 if waits else 0.0

    monkeypatch.setattr(timer, "queued_s", lambda: queued[0])
    found = time_call(
        *(call,), seconds=0.008, cores=2, computes=False, wall=lambda: now[0], cpu=lambda: 0.0
    )
    assert found.median_s == pytest.approx(1e-3)
    assert found.contention == pytest.approx(1.0)


def test_wider_ones_are_as_much_faster_as_a_data_sheet_says_with_more_doubt() -> None:
    two = Estimate(8e-3, low_s=7e-3, high_s=9e-3, rung="calibrated", source="timed")
    eight = scale_threads(two, WIDE, CPU, "torch-2", "torch-8")
    assert 2e-3 < eight.latency_s < 4e-3  # two doublings, of 1.7 at most each
    assert eight.rung == "probed"
    assert eight.high_s / eight.latency_s > 1.4 * two.high_s / two.latency_s
    assert "2 threads, scaled to 8" in eight.source


def test_on_this_host_none_is_planned_with_before_two_were_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [(k, "torch") for k, _ in threaded_kernels(["dqn"])]
    known = measure(1.0, kernels=jobs, prepare=synthetic())
    without = tuple(f for f in known.fits if f.variant != THREADS)
    for variant in ("torch-2", "torch-8"):
        assert calibrator.comparable_variants(known, WIDE, ["torch", variant]) == ["torch", variant]
        lacks = replace(known, fits=without)
        assert calibrator.comparable_variants(lacks, WIDE, ["torch", variant]) == ["torch"]
    monkeypatch.setattr(calibrator, "calibration", lambda device, kernels: known)
    found = [estimate(WIDE, CPU, variant=v, width=n) for v, n in (("torch-2", 2), ("torch-8", 8))]
    assert [e.rung for e in found] == ["calibrated", "probed"]


def test_every_family_that_torch_learns_by_has_them() -> None:
    of = {k.kind for k, _ in threaded_kernels()}
    assert of == set(threaded_families())
    assert len([*threaded_kernels(["dqn"])]) == benchmark_kernels.FEW
    assert "update.dqn" in of
    assert all(dict(cpu.offers(k, CPU))[v] == 2 for k, v in threaded_kernels(["sac"]))
    assert base.uses_several_cores(THREADS)


def test_more_threads_are_no_other_family_to_doubt() -> None:
    from pearl.planning.costs import CostTable, Mode
    from pearl_devices import Platform

    costs = CostTable(Platform("p", (CPU,)), ())
    cost = Estimate(1e-3, low_s=5e-4, high_s=2e-3, rung="datasheet")
    found = [
        _uncertainty(Mode(("learn",), "cpu", v, n, cost), WIDE, costs)
        for v, n in (("torch", 1), ("torch-4", 4), ("native", 1))
    ]
    one, four, native = (each.parts() for each in found if each)
    assert [a == b for a, b in zip(one, four, strict=True)] == [True] * 4 + [False]
    assert [a == b for a, b in zip(one, native, strict=True)] == [True] * 2 + [False] * 3
