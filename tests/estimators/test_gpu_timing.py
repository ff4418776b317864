"""The timer of GPUs, on the stand-in: it runs through, and its figures are thrown away."""

from __future__ import annotations

import json
import math

import pytest

from pearl_devices import Device
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.kernels import kind_of
from pearl_estimators.gpu import timing
from pearl_estimators.gpu.calibration import GpuCalibration
from pearl_estimators.gpu.timing import call_on, capture, small, time_gpu
from pearl_estimators.gpu.variants import Copies


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


@pytest.mark.parametrize(("structure", "variant"), [("environment", "cuda"), ("gradient", "eager")])
def test_the_kernels_whose_starts_are_timed_can_be_bound(structure: str, variant: str) -> None:
    for kernel in small(structure, variant):
        assert kind_of(kernel).structure == structure
        call_on(HostDriver(), kernel, variant)()
        return
    pytest.fail("there is none")


def test_copies_are_timed_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1e-5, 2e-5, 2**24 / 5e9, 2**24 / 4e9))
    monkeypatch.setattr(timing, "synchronised_s", lambda driver, call, seconds: next(times))
    assert vars(timing._copies(HostDriver(), 0.5)) == pytest.approx(vars(Copies(1e-5, 5e9, 4e9)))


def test_a_graph_of_a_device_without_graphs_is_the_call() -> None:
    def call() -> None: ...

    assert capture(HostDriver(), call) is call
