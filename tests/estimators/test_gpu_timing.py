"""The timer of GPUs, on the stand-in: it runs through, and its figures are thrown away."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pearl_devices import Device
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.kernels import kind_of
from pearl_estimators import estimate
from pearl_estimators.gpu import timing
from pearl_estimators.gpu.calibration import GpuCalibration, store_gpu
from pearl_estimators.gpu.timing import call_on, capture, small, time_gpu
from tests.estimators.test_estimators import DQN, GPU


@pytest.fixture(scope="module")
def found() -> GpuCalibration:
    device = Device("gpu", "gpu", width=8, width_unit="sm", model="A stand-in")
    return time_gpu(HostDriver(), device, seconds=0.3, largest=128)


def test_everything_that_plans_use_is_timed_and_survives_its_file(found: GpuCalibration) -> None:
    assert {fit.operator for fit in found.fits} == {"linear", "elementwise"}
    assert found.starts is not None
    assert found.copies is not None
    assert all(math.isfinite(s) and s >= 0 for s in vars(found.starts).values())
    assert all(rate > 0 for rate in vars(found.copies).values())
    again = GpuCalibration.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found


def test_estimates_of_every_variant_go_by_what_was_timed(
    found: GpuCalibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    assert found.starts is not None
    device = replace(GPU, model="A stand-in")
    slow = replace(found.starts, launch_s=1e-3, gradient_s=2e-3)
    before = {v: estimate(DQN, device, variant=v, width=w) for v, w in WAYS.items()}
    store_gpu(replace(found, starts=slow))
    after = {v: estimate(DQN, device, variant=v, width=w) for v, w in WAYS.items()}
    assert after["eager"].latency_s >= 3e-3 * kind_of(DQN).operations(DQN)
    assert "starts of eager timed" in after["eager"].source
    assert after["fused"].latency_s > before["fused"].latency_s + 0.9e-3
    assert (after["eager"].rung, after["fused"].rung) == ("calibrated", "datasheet")


WAYS = {"eager": 82, "fused": 1}


@pytest.mark.parametrize(("structure", "variant"), [("environment", "cuda"), ("gradient", "eager")])
def test_the_kernels_whose_starts_are_timed_can_be_bound(structure: str, variant: str) -> None:
    for kernel in small(structure, variant):
        assert kind_of(kernel).structure == structure
        call_on(HostDriver(), kernel, variant)()
        return
    pytest.fail("there is none")


def test_a_device_without_a_variant_in_cuda_has_the_starts_of_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "small", lambda structure, variant: iter(()))
    starts = timing._starts(HostDriver(), 0.01)
    assert starts.operator_s == 0.0
    assert starts.launch_s is not None
    assert starts.launch_s > 0


def test_a_graph_of_a_device_without_graphs_is_the_call() -> None:
    def call() -> None: ...

    assert capture(HostDriver(), call) is call
