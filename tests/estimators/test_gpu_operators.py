"""GPU operators: the model against machines whose times are known, its file, and the ladder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pearl.cli.text import gpu_calibration_text
from pearl_devices import Device
from pearl_devices.kernels import kernel
from pearl_estimators import estimate
from pearl_estimators.gpu import operators
from pearl_estimators.gpu.calibration import (
    COLUMNS,
    GpuCalibration,
    calibrate_gpu,
    path,
    read_rows,
    store_gpu,
)
from pearl_estimators.gpu.operators import (
    Operation,
    OperatorFit,
    choose_sizes,
    fit_operator,
    predict_operations,
)
from pearl_estimators.sealed_files import CalibrationError

OVERHEAD_S, FLOPS, BYTES, SMS = 20e-6, 10e12, 800e9, 80
GPU = Device(
    "gpu", "gpu", width=SMS, width_unit="sm", peak_flops_per_s=15e12, memory_bytes_per_s=900e9,
    overhead_s=5e-6, active_power_w=250.0, idle_power_w=50.0, model="Some GPU",
)  # fmt: skip


WIDE = [Operation("linear", 1, 2**n, 4096, 4096) for n in range(10, 20)]
FLAT = [Operation("linear", 1, 4, 4, n) for n in range(8, 38)]
VECTORS = [Operation("elementwise", 1, 2**n, 1, 2**12, 2) for n in range(10, 20)]
UNEVEN_VECTORS = [replace(o, streams=2 + i % 2) for i, o in enumerate(VECTORS)]


def shapes(count: int, seed: int, operator: str = "linear") -> list[Operation]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        m, k, n = (int(x) for x in 2 ** random.uniform(6, 13, 3))
        if operator in ("linear", "bmm"):
            made.append(Operation(operator, 1, m, k, n))  # type: ignore[arg-type]
        else:
            made.append(Operation(operator, 1, m, 1, n, 2))  # type: ignore[arg-type]
    return made


def ideal(o: Operation) -> float:
    return OVERHEAD_S + max(o.flops / FLOPS, o.bytes / BYTES)


def error(fit: OperatorFit, of: list[Operation], seconds: list[float]) -> float:
    found = predict_operations(fit, of)
    return float(np.mean([abs(g.seconds / s - 1) for g, s in zip(found, seconds, strict=True)]))


def test_flops_and_bytes_are_those_of_a_product_by_hand():
    o = Operation("bmm", 3, 4, 5, 6)
    assert o.flops == 3 * 2 * 4 * 5 * 6
    assert o.bytes == 3 * 4 * (4 * 5 + 5 * 6 + 4 * 6)
    vector = Operation("layer_norm", 1, 7, 1, 11, 2)
    assert (vector.flops, vector.bytes) == (77, 2 * 4 * 77)


def test_a_partly_filled_wave_costs_a_whole_one():
    o = Operation("linear", 1, 64 * 81, 10, 64)  # 81 tiles on 80 SMs: two rounds
    assert o.wave_flops(64, 80) == 2 * 10 * 64 * 64 * 160
    assert o.wave_flops(0, 80) == o.flops


def test_the_three_numbers_of_a_roofline_are_found_again():
    of = shapes(30, 0)
    fit = fit_operator(of, [ideal(o) for o in of], SMS)
    assert fit.overhead_s == pytest.approx(OVERHEAD_S, rel=0.02)
    assert fit.flops_per_s == pytest.approx(FLOPS, rel=0.02)
    unseen = shapes(300, 1)
    assert error(fit, unseen, [ideal(o) for o in unseen]) < 0.01


def test_what_the_sizes_do_not_identify_is_said_and_not_printed_as_a_number():
    """Large element-wise operators are bytes alone: no start, no arithmetic is seen."""
    fit = fit_operator(VECTORS, [o.bytes / BYTES for o in VECTORS], SMS)
    assert fit.unidentified == ("overhead_s", "flops_per_s")
    products = shapes(20, 0) + [Operation("linear", 1, 2**n, 4, 2**12) for n in range(6, 14)]
    whole = fit_operator(products, [ideal(o) for o in products], SMS)
    assert whole.unidentified == ()
    found = GpuCalibration("Some GPU", "a test", "", (whole, fit))
    assert GpuCalibration.from_json(found.to_json()) == found
    text = gpu_calibration_text(found, "g.json")
    assert "not identified by these sizes" in text
    assert " ps " not in text
    assert "not identified" not in gpu_calibration_text(replace(found, fits=(whole,)), "g.json")


@pytest.mark.parametrize(
    ("of", "seconds", "told"),
    [
        (VECTORS, lambda o: o.bytes / BYTES, [False, False, True]),
        (VECTORS, ideal, [True, False, True]),
        (UNEVEN_VECTORS, lambda o: o.bytes / BYTES, [False, False, True]),
        (WIDE, lambda o: o.flops / FLOPS, [False, True, False]),
        (FLAT, lambda o: OVERHEAD_S, [True, False, False]),
        (shapes(20, 0) + FLAT, ideal, [True, True, True]),
    ],
)
def test_rounding_does_not_choose_what_the_sizes_tell(of, seconds, told):
    """Two terms that keep one ratio, or that meet at a size, are one to a last digit."""
    random = np.random.default_rng(0)
    columns = np.array([(o.flops, o.bytes, seconds(o)) for o in of]).T
    for _ in range(8):
        rounded = columns * (1 + 1e-15 * random.choice([-1, 0, 1], columns.shape))
        assert operators._roofline(*rounded)[1] == told


def test_waves_are_chosen_where_the_machine_counts_them():
    def waved(o: Operation) -> float:
        return OVERHEAD_S + max(o.wave_flops(128, SMS) / FLOPS, o.bytes / BYTES)

    of = shapes(30, 2)
    fit = fit_operator(of, [waved(o) for o in of], SMS)
    assert fit.tile == 128
    unseen = shapes(300, 3)
    assert error(fit, unseen, [waved(o) for o in unseen]) < 0.02


def uneven(o: Operation) -> float:
    """A machine that is slow for wide outputs, as no roofline is."""
    return ideal(o) * (1 + 0.8 / (1 + math.exp(10.0 - math.log2(o.n))))


def test_neighbours_correct_what_no_roofline_says():
    of, unseen = shapes(200, 4), shapes(300, 5)
    taken = [of[i] for i in choose_sizes(of)]
    times = [uneven(o) for o in unseen]
    fit = fit_operator(taken, [uneven(o) for o in taken], SMS)
    alone = replace(fit, places=(), weights=())
    assert fit.places
    assert error(fit, unseen, times) < 0.5 * error(alone, unseen, times)


def test_noise_of_a_tenth_is_smoothed_and_not_learnt():
    errors = []
    for seed in range(4):
        of, unseen = shapes(30, 6 + seed), shapes(300, 60 + seed)
        noise = np.random.default_rng(seed).normal(0, 0.1, 30)
        times = [ideal(o) * math.exp(e) for o, e in zip(of, noise, strict=True)]
        errors.append(error(fit_operator(of, times, SMS), unseen, [ideal(o) for o in unseen]))
    assert np.mean(errors) < 0.06


def test_the_band_holds_nine_of_ten():
    random = np.random.default_rng(8)
    of, unseen = shapes(30, 9), shapes(500, 10)
    times = {o: ideal(o) * math.exp(random.normal(0, 0.05)) for o in of + unseen}
    fit = fit_operator(of, [times[o] for o in of], SMS)
    found = predict_operations(fit, unseen)
    held = np.mean([g.low_s <= times[o] <= g.high_s for g, o in zip(found, unseen, strict=True)])
    assert 0.8 <= held <= 0.99


def test_sizes_far_outside_are_flagged_and_their_band_is_at_least_doubled():
    of = shapes(30, 11)
    fit = fit_operator(of, [ideal(o) for o in of], SMS)
    inside, outside = predict_operations(fit, [of[0], Operation("linear", 1, 2**17, 64, 64)])
    assert not inside.extrapolated
    assert outside.extrapolated
    wide = [math.log(g.high_s / g.seconds) for g in (inside, outside)]
    assert wide[1] >= 2 * wide[0] * (1 - 1e-9)


def test_a_rate_that_nothing_was_bound_by_stays_near_what_was_seen():
    of = [Operation("linear", 1, 4, 4, int(n)) for n in range(8, 38)]
    fit = fit_operator(of, [OVERHEAD_S] * 30, SMS)
    assert fit.flops_per_s <= 31 * max(o.flops for o in of) / OVERHEAD_S


def test_the_choice_of_sizes_looks_at_sizes_alone_and_spreads_them():
    of = shapes(300, 12)
    taken = choose_sizes(of, 30, first=5)
    assert taken[0] == 5
    assert len(set(taken)) == 30
    spread = np.ptp(np.array([of[i].place for i in taken]), axis=0)
    assert (spread > 0.9 * np.ptp(np.array([o.place for o in of]), axis=0) - 1e-12).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": 5}, "at least 8"),
        ({"zero": True}, "finite and above 0"),
        ({"mixed": True}, "one operator"),
    ],
)
def test_what_cannot_be_fitted_says_why(change, text):
    of = shapes(change.get("count", 20), 13)
    if change.get("mixed"):
        of[0] = Operation("softmax", 1, 4, 1, 4, 2)
    times = [ideal(o) for o in of]
    if change.get("zero"):
        times[0] = 0.0
    with pytest.raises(ValueError, match=text):
        fit_operator(of, times, SMS)


@pytest.mark.parametrize(
    "given", [("conv", 1, 1, 1, 1, 0), ("linear", 0, 1, 1, 1, 0), ("softmax",)]
)
def test_a_wrong_operation_says_what_is_allowed(given):
    with pytest.raises(ValueError, match=r"there are|at least"):
        Operation(*given)


@pytest.fixture(scope="module")
def rows() -> list[tuple[Operation, float]]:
    return [(o, ideal(o)) for op in ("linear", "elementwise") for o in shapes(60, 14, op)]


@pytest.fixture(scope="module")
def calibration(rows) -> GpuCalibration:
    return calibrate_gpu("Some GPU", SMS, rows, "a test")


def test_a_calibration_survives_its_file_and_an_edit_is_refused(calibration):
    stored = json.loads(json.dumps(calibration.to_json(), allow_nan=False))
    assert GpuCalibration.from_json(stored) == calibration
    stored["fits"][0]["overhead_s"] *= 2
    with pytest.raises(CalibrationError, match="checksum"):
        GpuCalibration.from_json(stored)
    with pytest.raises(CalibrationError, match="schema is 9"):
        GpuCalibration.from_json({**stored, "schema": 9})


def test_a_calibration_without_a_needed_operator_is_refused(rows):
    with pytest.raises(CalibrationError, match="no row of elementwise"):
        calibrate_gpu("Some GPU", SMS, [r for r in rows if r[0].operator == "linear"], "a test")


def update(batch: int):
    sizes = {"obs": 4, "act": 0, "q": (4, 1024, 1024, 2), "batch": batch, "steps": 1, "double": 1}
    return kernel("update.dqn", sizes, program="pearl.algorithms.dqn:losses")


def test_a_calibrated_gpu_is_estimated_from_its_operators(
    calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    before = estimate(update(4096), GPU, width=SMS)
    assert store_gpu(calibration) == path("Some GPU")
    after = estimate(update(4096), GPU, width=SMS)
    assert (before.rung, after.rung) == ("datasheet", "calibrated")
    assert after.bound_by == "compute"
    # the machine computes at two thirds of the peak that the data sheet gives, the rung below
    # expects 0.59 of it and waves
    assert 0.5 * before.latency_s < after.latency_s < before.latency_s
    assert after.low_s < after.latency_s < after.high_s
    half = estimate(update(4096), GPU, width=SMS // 2)
    assert half.latency_s > 1.5 * after.latency_s
    other = estimate(update(4096), replace(GPU, model="Another GPU"), width=SMS)
    assert other.rung == "datasheet"


def test_a_small_kernel_is_bound_by_starting_its_operators(
    calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    store_gpu(calibration)
    acting = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 64, 2))
    found = estimate(acting, GPU, width=SMS)
    assert found.bound_by == "overhead"
    assert found.latency_s >= OVERHEAD_S * 0.9


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    path("Some GPU").write_text('{"schema": 1, ')
    with pytest.raises(CalibrationError, match="delete it, or calibrate"):
        estimate(update(8), GPU, width=SMS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("operator,m\n", ":1: no column batch"),
        (",".join(COLUMNS) + "\nlinear,1,2,3,4,0,nan\n", ":2: seconds is nan"),
        (",".join(COLUMNS) + "\nlinear,1,x,3,4,0,1\n", ":2: invalid literal"),
        (",".join(COLUMNS) + "\nconv,1,1,3,4,0,1\n", ":2: operation conv"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, text, line):
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(CalibrationError, match="rows.csv" + line):
        read_rows(file)
