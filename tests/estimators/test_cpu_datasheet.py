"""The datasheet rung of CPUs: against times of a real host, and how it scales to others."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from pearl.spec.catalogue import catalogue
from pearl.spec.platform_files import read_platform
from pearl_devices import Device, Kernel, kernel, offers
from pearl_devices.buffers import specs
from pearl_estimators import Estimate, cpu, estimate
from pearl_estimators.cpu import CALL_S
from pearl_estimators.cpu_datasheet import (
    CLOCK_HZ,
    CORE_FLOPS_PER_S,
    NATIVE,
    TORCH,
    counts,
    least_s,
    rate,
)
from pearl_estimators.cpu_datasheet import seconds as seconds_of
from pearl_estimators.host import features
from tests.estimators.gradient_steps import gradient_steps

HERE = Device(
    "cpu", "cpu", width=2, peak_flops_per_s=2 * CORE_FLOPS_PER_S, memory_bytes_per_s=12.8e9,
    overhead_s=1e-6, figures={"clock_hz": CLOCK_HZ, "l2_bytes": 2.0**20, "l3_bytes": 2.0**25},
)  # fmt: skip
TIMES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("host_times.json").read_text())
"""Kernels drawn from the points of a calibration of that host, 2026-11-22, and their seconds."""


def of(row: dict[str, Any]) -> Kernel:
    dims = {n: tuple(d) if isinstance(d, list) else d for n, d in row["dims"].items()}
    return kernel(row["kind"], dims, program=row["program"], args=row["args"])


def named(name: str) -> Device:
    platform, _, problems = read_platform({"devices": {"cpu": dict(catalogue()[name])}})
    assert platform is not None, problems
    return platform.devices[0]


@pytest.mark.parametrize("variant", ["native", "torch"])
def test_a_host_taken_as_unknown_is_predicted_within_its_band(variant: str) -> None:
    errors, held = [], []
    rows = [row for row in TIMES if row["variant"] == variant]
    for row in rows:
        e = estimate(of(row), HERE, variant=variant, width=row["width"])
        errors.append(abs(e.latency_s / row["seconds"] - 1))
        held.append(e.low_s <= row["seconds"] <= e.high_s)
    assert len(rows) >= 12
    assert median(errors) <= 0.3
    assert sum(held) >= 0.85 * len(held)


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("share", ["product_share", "tanh_share", "adam_share"])
def test_a_core_that_reaches_half_of_the_shares_takes_longer_for_native_kernels_alone(
    variant: str, share: str
) -> None:
    half = replace(HERE, figures={**HERE.figures, share: 0.5})
    rows = [row for row in TIMES if row["variant"] == variant]
    times = [[seconds_of(of(row), on, variant).compute_s for row in rows] for on in (HERE, half)]
    ratios = [after / before for before, after in zip(*times, strict=True) if before > 0]
    assert min(ratios) >= 1
    assert max(ratios) == 1 if variant == "torch" else 1 < max(ratios) <= 2


@pytest.mark.parametrize("row", TIMES[::9], ids=lambda row: f"{row['kind']} {row['variant']}")
def test_an_estimate_is_the_same_on_every_machine(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = counts(of(row), HERE, row["variant"])
    monkeypatch.setattr(features, "cache_bytes", lambda: (2.0**13, 2.0**16, 2.0**18))
    assert counts(of(row), HERE, row["variant"]) == before


@pytest.mark.parametrize("name", [n for n, d in catalogue().items() if d["kind"] == "cpu"])
def test_no_gradient_step_beats_the_peak_of_its_cores_or_the_memory(name: str) -> None:
    cpu = named(name)
    assert rate(cpu, 1) <= 64 * cpu.figures["clock_hz"]
    assert cpu.max_lanes == cpu.figures.get("performance_cores", cpu.width)
    for k in islice(gradient_steps(), len(name) % 5, None, 5):  # a fifth of them for each CPU
        for variant, cores in offers(k, cpu):
            e = estimate(k, cpu, variant=variant, width=cores)
            assert e.latency_s >= least_s(k, cpu, cores), (k.kind, k.dims, variant)
            assert k.flops / e.latency_s <= rate(cpu, cores)
            assert e.latency_s >= CALL_S


def test_a_lone_lane_of_a_hybrid_cpu_has_a_performance_core() -> None:
    hybrid = named("core_i9_13900k")
    assert rate(hybrid, 1) == pytest.approx(5.8e9 * 32, rel=0.01)
    assert rate(hybrid, 24) == pytest.approx(hybrid.peak_flops_per_s)
    assert rate(hybrid, 9) - rate(hybrid, 8) == pytest.approx(4.3e9 * 16, rel=0.01)


ONE_STEP = kernel(
    *("update.dqn",), program="pearl.algorithms.dqn:losses", obs=4, act=0, q=(4, 64, 64, 2),
    batch=64, steps=1, double=1,
)  # fmt: skip


def plain_estimate(latency_s: float, rung: str, band: float) -> Estimate:
    low_s, high_s = latency_s / band, latency_s * band
    return Estimate(latency_s, latency_s / 2, low_s, high_s, rung=rung, source=rung)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alone", "together", "seconds", "band"),
    [
        (("datasheet", 3.0), ("datasheet", 2.0), 2.0, 1.5),  # no slower than its parts
        (("datasheet", 1.0), ("datasheet", 2.0), 1.0, 1.5),  # with the band of its parts
        (("probed", 2.0), ("datasheet", 2.0), 2.0, 1.5),
        (("datasheet", 1.0), ("calibrated", 2.0), 2.0, 1.5),  # timed parts are better known
        (("calibrated", 3.0), ("datasheet", 2.0), 3.0, 1.1),
        (("calibrated", 3.0), ("probed", 2.0), 3.0, 1.1),
        (("calibrated", 3.0), ("calibrated", 2.0), 2.0, 1.5),
        (("calibrated", 1.0), ("measured", 2.0), 1.0, 1.1),
    ],
)
def test_a_fused_call_is_the_better_known_then_the_faster_of_whole_and_parts(
    monkeypatch: pytest.MonkeyPatch, alone: Any, together: Any, seconds: float, band: float
) -> None:
    sizes: dict[str, Any] = {"envs": 8, "capacity": 8000, "fanout": 16, "prioritised": 1}
    learn = kernel("learn.dqn", {**ONE_STEP.dims, **sizes, "n_step": 1})
    monkeypatch.setattr(cpu, "_estimate_alone", lambda *_: plain_estimate(alone[1], alone[0], 1.1))
    slower = iter([5.0, 0.0])

    def fused(*_: Any) -> Estimate:
        return plain_estimate(together[1] + next(slower, 0.0), together[0], 1.5)

    monkeypatch.setattr(cpu, "_estimate_fused", fused)
    kind = SimpleNamespace(like=None, structure="fused", cuts=lambda _: ((), ()))
    monkeypatch.setattr(cpu, "kind_of", lambda _: kind)
    found = cpu.estimate_without_feedback(learn, HERE, "native", 1)
    assert (found.latency_s, found.low_s, found.high_s) == pytest.approx(
        (seconds, seconds / band, seconds * band)
    )


def test_a_fused_call_saves_the_calls_of_its_parts_but_for_the_longest() -> None:
    """Of a part called n times, n · (60 ns + 50 ns for each array), at most 0.9 of its time."""
    act = kernel("inference.dqn", envs=1, obs=4, act=0, q=(4, 8, 2))
    cut = ((ONE_STEP, 1), (act, 3))
    calls = [n * (0.06e-6 + 0.05e-6 * len(specs(k))) for k, n in cut]
    parts = [(n, cpu.estimate_without_feedback(k, HERE, "native", 1)) for k, n in cut]
    whole = sum(n * e.latency_s for n, e in parts)
    sizes: dict[str, Any] = {"envs": 8, "capacity": 8000, "fanout": 16, "prioritised": 0}
    learn = kernel("learn.dqn", {**ONE_STEP.dims, **sizes, "n_step": 1})
    found = cpu._estimate_fused(learn, cut, HERE, "native", 1)
    left = 1 - min(calls) / whole
    low_s, high_s = (sum(n * getattr(e, end) for n, e in parts) for end in ("low_s", "high_s"))
    assert (found.latency_s, found.occupancy_s, found.low_s, found.high_s) == pytest.approx(
        (left * whole, left * whole, left * low_s, left * high_s)
    )
    assert found.source == f"sum of its 2 parts in one call; the longest: {parts[0][1].source}"
    many = cpu._estimate_fused(learn, ((act, 1), (act, 100_000)), HERE, "native", 1)
    assert many.latency_s == pytest.approx(100_001 * parts[1][1].latency_s - calls[1] / 3)


def test_costs_scale_with_vectors_clock_threads_and_dispatch() -> None:
    """Term by term on a device of half the clock and a quarter of the peak, and for 4 threads."""
    figures = {"clock_hz": CLOCK_HZ / 2, "l2_bytes": 2.0**14, "l3_bytes": 2.0**25}
    slow = replace(HERE, width=8, peak_flops_per_s=2 * CORE_FLOPS_PER_S, figures=figures)
    for variant, costs, threads in (
        ("native", NATIVE, 1),
        ("torch", TORCH, 1),
        ("torch-4", TORCH, 4),
    ):
        torch = costs is TORCH
        # torch has 32 flops a cycle at most: 16 of REFERENCE's 64 are left, of another core
        vector = 2.0 * 32 / 32 if torch else 4.0
        dispatch = 2.0 * (1.5 if torch else 1.0)
        speed, joined_s = (4 * 0.8**2, 2 * 5e-6) if threads == 4 else (1.0, 0.0)
        spent = {"overhead_s": 0.0, "compute_s": 0.0, "memory_s": 0.0}
        for name, number in counts(ONE_STEP, slow, variant).items():
            cost = number * costs.get(name, 0.0)
            if name == "operation":
                spent["overhead_s"] += joined_s * number
            if "_beyond_" in name:
                spent["memory_s"] += cost / speed
            elif name in ("cycles", "dot_cycles", "flops", "learned", "tanh", "elements"):
                spent["compute_s"] += cost * vector / speed
            elif name in ("call", "gradient_step", "product", "operation", "backward_operation",
                          "layer", "time", "launches"):  # fmt: skip
                spent["overhead_s"] += cost * dispatch
            else:
                spent["compute_s"] += cost * 2.0 / (speed if name in ("numbers", "rows") else 1.0)
        found = seconds_of(ONE_STEP, slow, variant)
        assert vars(found) == pytest.approx(spent), variant
        assert all(spent.values())
