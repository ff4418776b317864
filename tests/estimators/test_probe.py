"""The probe of a host: what it times, where it is kept, and what is estimated by it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import pearl
from pearl.advice.hardware import catalogue_device, platform_with
from pearl.advice.measuring import _probe_hint
from pearl_devices import Device, kernel
from pearl_estimators import sealed_files
from pearl_estimators.cpu_datasheet import cpu_datasheet, seconds
from pearl_estimators.gpu.calibration import calibrated_or_roofline
from pearl_estimators.gpu.variants import ASSUMED, starts_of
from pearl_estimators.host import probe
from pearl_estimators.host.probe import REFERENCE, CpuProbe, load_probe
from pearl_estimators.roofline import launches
from pearl_estimators.sealed_files import CalibrationError
from tests.cli.test_cli import Ran
from tests.schemas.test_schemas import problems

CPU = Device("cpu", "cpu", width=2, peak_flops_per_s=465e9, memory_bytes_per_s=60e9, real=True)
LEARNS = kernel(
    "update.dqn",
    {"obs": 4, "act": 0, "q": (4, 64, 64, 2), "batch": 64, "steps": 1, "double": 1},
    program="pearl.algorithms.dqn:losses",
)
TWICE = replace(
    REFERENCE, operator_s=2 * REFERENCE.operator_s, gradient_s=2 * REFERENCE.gradient_s,
    products={side: rate / 2 for side, rate in REFERENCE.products.items()},
    native_flops_per_s=REFERENCE.native_flops_per_s / 2,
    memory_bytes_per_s=REFERENCE.memory_bytes_per_s / 2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    return tmp_path


def kept(monkeypatch: pytest.MonkeyPatch, found: CpuProbe) -> None:
    """CpuProbe a host that is found to be so."""
    said = "pearl_estimators.host.child_process.run_in_child"
    monkeypatch.setattr(said, lambda *_, **__: found.to_json())
    assert probe.probe() == found


def test_a_host_is_probed_in_a_process_of_its_own_and_the_result_kept() -> None:
    assert load_probe() is None
    ran = Ran("calibrate", "--probe", "--json", "-")
    assert ran.status == 0
    assert problems(ran.object(), "probe") == []
    found = load_probe()
    assert found is not None
    assert found.to_json().items() <= ran.object().items()
    assert found.products["16"] < found.products["256"]
    refused = Ran("calibrate", "--probe", "--check")
    assert refused.status != 0
    assert "--probe excludes" in refused.err


def test_a_probe_of_another_torch_does_not_count_and_a_damaged_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept(monkeypatch, TWICE)
    assert load_probe() == TWICE
    monkeypatch.setattr(probe, "_torch", lambda: "9.9")
    monkeypatch.setattr(sealed_files, "_loaded", {})
    assert load_probe() is None
    file = probe.probe_path()
    file.write_text(file.read_text().replace("operator_s", "operator"))
    with pytest.raises(CalibrationError, match="`pearl calibrate --probe` makes it again"):
        load_probe()
    for name, value in (("operator_s", -1), ("handoff_s", 0.0), ("memory_bytes_per_s", math.inf)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            replace(TWICE, **{name: value})
    with pytest.raises(ValueError, match=r"products\.64 is nan"):
        replace(TWICE, products={**TWICE.products, "64": math.nan})
    with pytest.raises(ValueError, match="no rate of products"):
        replace(TWICE, products={"16": 1e9})


@pytest.mark.parametrize("variant", ["native", "torch"])
def test_a_host_that_is_probed_twice_as_slow_takes_as_much_longer(variant: str) -> None:
    once, twice = (seconds(LEARNS, CPU, variant, p) for p in (REFERENCE, TWICE))
    assert twice.compute_s > 1.2 * once.compute_s
    if variant == "torch":
        assert twice.overhead_s == pytest.approx(2 * once.overhead_s)
    assert seconds(LEARNS, CPU, variant, REFERENCE).overhead_s == pytest.approx(
        seconds(LEARNS, CPU, variant).overhead_s
    )


def test_it_is_the_rung_below_calibration_of_this_host_and_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cpu_datasheet(LEARNS, CPU, "torch", 1).rung == "datasheet"
    native = cpu_datasheet(LEARNS, CPU, "native", 1)
    kept(monkeypatch, TWICE)
    here = cpu_datasheet(LEARNS, CPU, "torch", 1)
    assert here.rung == "probed"
    assert cpu_datasheet(LEARNS, CPU, "native", 1).latency_s > 1.2 * native.latency_s
    assert "pearl calibrate --probe" in here.source
    for other in (replace(CPU, real=False), replace(CPU, host="b")):
        there = cpu_datasheet(LEARNS, other, "torch", 1)
        assert (there.rung, there.latency_s < here.latency_s) == ("datasheet", True)


def test_eager_operators_of_a_gpu_are_started_by_the_cpu_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = catalogue_device("rtx_4090")
    assert starts_of(card) == starts_of(replace(card, real=True)) == ASSUMED
    kept(monkeypatch, TWICE)
    assert starts_of(card) == ASSUMED
    assert starts_of(replace(card, real=True)).gradient_s == 2 * ASSUMED.gradient_s
    of_mine = replace(card, real=True, figures={**card.figures, "gradient_s": 1e-6})
    assert starts_of(of_mine).gradient_s == 1e-6
    system = pearl.load("dqn_cartpole")
    bought = platform_with(system.platform, "rtx_4090")[0].device("rtx_4090")
    assert starts_of(bought).gradient_s == 2 * ASSUMED.gradient_s
    now, before = (calibrated_or_roofline(LEARNS, d, "eager", d.width) for d in (bought, card))
    more = launches(LEARNS, "eager") * ASSUMED.gradient_s
    assert now.latency_s - before.latency_s == pytest.approx(more, rel=0.05)


def test_advice_names_the_probe_where_starting_operators_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(family: str, **host: object) -> str:
        platform = SimpleNamespace(host="cpu", device=lambda _: replace(CPU, **host))  # type: ignore[arg-type]
        problem = SimpleNamespace(costs=SimpleNamespace(platform=platform))
        return _probe_hint(SimpleNamespace(problem=problem), family)  # type: ignore[arg-type]

    eager = "update (eager) on gpu NVIDIA GeForce RTX 4090"
    assert "pearl calibrate --probe" in told(eager)
    assert told(eager.replace("eager", "cuda")) == told(eager, real=False) == ""
    kept(monkeypatch, TWICE)
    assert told(eager) == ""
