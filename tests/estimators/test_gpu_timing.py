"""The timer of GPUs, on the stand-in: it runs through, and its figures are thrown away."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pearl_devices import Device, UnsupportedError
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.kernels import kind_of
from pearl_estimators.gpu import timing
from pearl_estimators.gpu.calibration import GpuCalibration
from pearl_estimators.gpu.timing import call_on, capture, small, time_gpu
from pearl_estimators.gpu.variants import Copies, Starts


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


class Number:
    """A tensor of one number that counts what is added to it."""

    added = 0

    def add_(self, value: int) -> None:
        assert value == 1
        self.added += 1


@pytest.mark.parametrize(
    ("begin_s", "each_s", "launch_s", "gradient_s", "starts"),
    [
        (2e-6, 1e-6, 0.4e-6, 3e-6, Starts(0.6e-6, 2.6e-6, 1.6e-6, 1e-6, 0.4e-6)),
        (2e-6, 1e-6, 7e-6, 0.5e-6, Starts(0.0, 0.0, 1e-6, 1e-6, 1e-6)),
        (0.5e-6, 1e-6, 0.7e-6, 1e-6, Starts(0.3e-6, 0.3e-6, 0.0, 1e-6, 0.7e-6)),
        (9e-6, -1e-7, 1.0, 1e-6, Starts(0.0, 1e-6, 8.2e-6, 0.0, 0.0)),
    ],
)
def test_starts_are_what_more_operators_take_and_what_none_takes(
    begin_s: float,
    each_s: float,
    launch_s: float,
    gradient_s: float,
    starts: Starts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = Number()
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: number)

    def timed(driver: HostDriver, call: Callable[[], object], seconds: float) -> float:
        before = number.added
        call()
        assert seconds == 0.5
        return begin_s + each_s * (number.added - before)

    def each(driver: HostDriver, structure: str, variant: str, *rest: float) -> float:
        assert rest == (0.5, pytest.approx(max(each_s, 0.0)))
        return {("environment", "cuda"): launch_s, ("gradient", "eager"): gradient_s}[
            structure, variant
        ]

    monkeypatch.setattr(timing, "synchronised_s", timed)
    monkeypatch.setattr(timing, "_each_s", each)
    found = timing._starts(HostDriver(), 0.5)
    assert vars(found) == pytest.approx(vars(starts), abs=1e-12)


def test_an_operation_of_a_kernel_is_its_share_of_eight_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    monkeypatch.setattr(timing, "call_on", lambda *_: lambda: called.append(1))

    def timed(driver: HostDriver, call: Callable[[], object], seconds: float) -> float:
        call()
        return 24.0

    monkeypatch.setattr(timing, "synchronised_s", timed)
    k = next(small("gradient", "eager"))
    share = 24.0 / 8 / kind_of(k).operations(k)
    assert timing._each_s(HostDriver(), "gradient", "eager", 0.5, 7.0) == pytest.approx(share)
    assert len(called) == 8
    assert timing._each_s(HostDriver(), "gradient", "none", 0.5, 7.0) == 7.0

    def refused(*_: object) -> None:
        raise UnsupportedError("torch alone")

    monkeypatch.setattr(timing, "call_on", refused)
    assert timing._each_s(HostDriver(), "gradient", "eager", 0.5, 7.0) == 7.0


def test_copies_are_timed_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1e-5, 2e-5, 2**24 / 5e9, 2**24 / 4e9))
    monkeypatch.setattr(timing, "synchronised_s", lambda driver, call, seconds: next(times))
    assert vars(timing._copies(HostDriver(), 0.5)) == pytest.approx(vars(Copies(1e-5, 5e9, 4e9)))


def test_a_call_is_timed_to_the_end_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done, asked = [], {}

    def timed(call: Callable[[], None], **given: Any) -> SimpleNamespace:
        call()
        asked.update(given)
        return SimpleNamespace(median_s=7.0)

    queue = SimpleNamespace(finish=lambda: done.append("finished"))
    monkeypatch.setattr(timing, "streams_of", lambda device: queue)
    monkeypatch.setattr(timing, "time_call", timed)
    assert timing.synchronised_s(HostDriver(), lambda: done.append("called"), 0.5) == 7.0
    assert done == ["called", "finished"]
    assert asked == {"seconds": 0.5, "computes": False, "blocks": 3}


def test_a_graph_of_a_device_without_graphs_is_the_call() -> None:
    def call() -> None: ...

    assert capture(HostDriver(), call) is call
