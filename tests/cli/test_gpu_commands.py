"""`pearl devices` and `pearl calibrate` on a machine with a GPU, by the stand-in for its driver."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pearl.cli import app
from pearl_devices import Device, Link, Platform, UnsupportedError, trust_kind
from pearl_devices.discover import cpu
from pearl_devices.gpu import nvidia, program
from pearl_devices.gpu import verify as verification
from pearl_devices.gpu.driver import HostDriver
from pearl_estimators.gpu import timing
from pearl_estimators.gpu.calibration import calibrated_or_roofline, path
from pearl_estimators.host import measuring
from tests.calibrations import KERNELS, measure, synthetic
from tests.estimators.test_estimators import DQN
from tests.schemas.test_schemas import problems

GPU = Device("gpu", "gpu", width=8, width_unit="sm", model="A stand-in", real=True)


@pytest.fixture
def with_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    found = Platform("host", (cpu(), GPU), (Link("cpu", "gpu", 1e-5, 1e10),))
    monkeypatch.setattr("pearl_devices.discover.host", lambda: found)


def test_the_variants_of_a_gpu_are_listed(with_a_gpu: None) -> None:
    ran = CliRunner().invoke(app, ["devices", "--json", "-"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert problems(value, "devices") == []
    kinds = value["variants"]["gpu"]
    assert {"eager", "graph"} <= set(kinds["update.dqn"])
    assert "cuda" in kinds["env_step"]
    assert "cpu" not in value["variants"]
    text = CliRunner().invoke(app, ["devices"]).stdout
    assert "What gpu runs" in text


@pytest.fixture
def calibrated(with_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own calibration is given."""
    host = measure(30.0, kernels=KERNELS[:30], prepare=synthetic())
    monkeypatch.setattr(measuring, "calibrate", lambda **given: host)


def test_a_gpu_is_timed_after_the_host_and_kept_with_its_driver(
    calibrated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = timing.time_gpu
    monkeypatch.setattr(nvidia, "driver", lambda number: HostDriver())
    monkeypatch.setattr(timing, "time_gpu", lambda d, device, s: whole(d, device, 0.2, 128))
    monkeypatch.setattr(timing, "driver_version", lambda: "580.1")
    ran = CliRunner().invoke(app, ["calibrate", "--json", "-"])
    assert ran.exit_code == 0, ran.output
    value: dict[str, Any] = json.loads(ran.stdout)
    assert problems(value, "calibrate") == []
    (gpu,) = value["devices"]
    assert (gpu["driver"], gpu["model"]) == ("580.1", "A stand-in")
    assert path("A stand-in").is_file()
    other = calibrated_or_roofline(DQN, GPU, "eager", 8)
    assert other.rung == "datasheet"
    assert "timed under driver 580.1" in other.source
    monkeypatch.setattr("pearl_estimators.gpu.calibration.driver_version", lambda: "580.1")
    assert calibrated_or_roofline(DQN, GPU, "eager", 8).rung == "calibrated"


def test_a_gpu_that_nothing_drives_is_told_and_the_host_is_kept(
    calibrated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(number: int) -> Any:
        raise UnsupportedError("this torch is built for CPUs alone")

    monkeypatch.setattr(nvidia, "driver", none)
    ran = CliRunner().invoke(app, ["calibrate"])
    assert ran.exit_code == 0, ran.output
    assert "gpu: not timed: this torch is built for CPUs alone" in ran.stdout
    assert "Calibrated kernels" in ran.stdout


def verified(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """`pearl devices --verify` of a machine whose GPU is the stand-in, for a few kernels."""
    trust_kind("pearl_devices.gpu.stand_in")
    gpu = replace(GPU, kind="pearl_devices.gpu.stand_in")
    found = Platform("host", (cpu(), gpu), (Link("cpu", "gpu", 1e-5, 1e10),))
    monkeypatch.setattr("pearl_devices.discover.host", lambda: found)
    whole = verification.verify

    def few(device: Device, number: int) -> Any:
        return whole(device, number, only=lambda k, v: (k.kind, v) == ("env_step", "cuda"))

    monkeypatch.setattr(verification, "verify", few)
    return CliRunner().invoke(app, ["devices", "--verify", *words])


def test_a_gpu_that_computes_as_the_cpu_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = verified(monkeypatch, "--json", "-")
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert problems(value, "devices") == []
    assert {v["passed"] for v in value["verified"]["gpu"]} == {True}


def test_a_wrong_kernel_is_status_1_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = program._pieces

    def faulty(file: str, seen: set[str]) -> Any:
        for piece in pieces(file, seen):
            yield piece.replace("? FORCE_N : -FORCE_N", "? -FORCE_N : FORCE_N")

    monkeypatch.setattr(program, "_pieces", faulty)
    ran = verified(monkeypatch)
    assert ran.exit_code == 1, ran.output
    assert "env_step cuda: " in ran.stdout
    assert "differs from the CPU's by" in ran.stdout


def test_without_a_gpu_there_is_nothing_to_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pearl_devices.discover.host", lambda: Platform("host", (cpu(),)))
    ran = CliRunner().invoke(app, ["devices", "--verify"])
    assert ran.exit_code == 2
    assert "nothing to verify" in ran.stderr
