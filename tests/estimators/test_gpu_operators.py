"""GPU operators: the model against machines whose times are known, its file, and the ladder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pearl.cli.text import gpu_calibration_text
from pearl_devices import Device
from pearl_devices.kernels import kernel, kind_of
from pearl_estimators import estimate
from pearl_estimators.gpu import calibration as calibration_of_gpus
from pearl_estimators.gpu import operators
from pearl_estimators.gpu.calibration import (
    COLUMNS,
    GpuCalibration,
    calibrate_gpu,
    estimate_gpu,
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
from pearl_estimators.gpu.variants import Starts
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
    assert Operation("bmm", 5, 65, 7, 129).wave_flops(64, 4) == 2 * 7 * 64**2 * 32  # 30 tiles
    assert Operation("softmax", 1, 9, 1, 9, 2).wave_flops(64, 80) == 81


def test_the_three_numbers_of_a_roofline_are_found_again():
    of = [*shapes(24, 0), *(Operation("linear", 1, 2**n, 4, 2**12) for n in range(6, 14))]
    fit = fit_operator(of, [ideal(o) for o in of], SMS)
    found = fit.overhead_s, fit.flops_per_s, fit.bytes_per_s
    assert found == pytest.approx((OVERHEAD_S, FLOPS, BYTES), rel=1e-5)
    assert (fit.tile, fit.places, fit.signal, fit.band) == (0, (), 0.0, 0.01)
    assert fit.noise == fit.spread == 3e-3
    assert fit.points == 32
    assert fit.low == tuple(min(o.place[i] for o in of) for i in range(5))
    assert fit.high == tuple(max(o.place[i] for o in of) for i in range(5))
    assert (fit.reach[0], fit.reach[4]) == (1e6, 1e6)


def far(a: tuple[float, ...], b: tuple[float, ...], reach: tuple[float, ...]) -> float:
    """Matern 3/2 of a distance (Rasmussen and Williams 2006, equation 4.17)."""
    r = math.sqrt(3 * sum(((x - y) / s) ** 2 for x, y, s in zip(a, b, reach, strict=True)))
    return (1 + r) * math.exp(-r)


def deviations(fit: OperatorFit, of: list[Operation], seconds: list[float]) -> list[float]:
    """ln(timed / roofline)."""
    rates = fit.flops_per_s, fit.bytes_per_s
    roofline = [fit.overhead_s + max(o.flops / rates[0], o.bytes / rates[1]) for o in of]
    return [math.log(s / r) for s, r in zip(seconds, roofline, strict=True)]


def test_the_band_of_a_bare_roofline_is_that_of_its_deviations():
    of, random = shapes(30, 6), np.random.default_rng(3)
    times = [ideal(o) * math.exp(random.normal(0, 0.1)) for o in of]
    fit = fit_operator(of, times, SMS)
    assert fit.places == fit.weights == ()
    found = deviations(fit, of, times)
    assert fit.noise == fit.spread == pytest.approx(np.std(found))
    assert fit.band == pytest.approx(sorted(map(abs, found))[27])  # 0.93 of 29 steps, upwards
    assert fit.error == pytest.approx(np.mean([abs(math.exp(d) - 1) for d in found]))


def test_a_corrected_fit_predicts_each_point_by_the_others():
    of = shapes(20, 4)
    times = [uneven(o) for o in of]
    fit = fit_operator(of, times, SMS)
    assert fit.tile == 0
    assert fit.places == tuple(o.place for o in of)
    found = np.array(deviations(fit, of, times))
    near = [[far(a, b, fit.reach) for b in fit.places] for a in fit.places]
    whole = fit.signal**2 * np.array(near) + fit.noise**2 * np.eye(20)
    assert fit.weights == pytest.approx(np.linalg.solve(whole, found), rel=1e-6)
    left, spread = [], []
    for i in range(20):
        others = [j for j in range(20) if j != i]
        row, rest = whole[i, others], whole[np.ix_(others, others)]
        left.append(found[i] - row @ np.linalg.solve(rest, found[others]))
        spread.append(math.sqrt(whole[i, i] - row @ np.linalg.solve(rest, row)))
    assert fit.band == pytest.approx(sorted(map(abs, left))[18], rel=1e-6)
    assert fit.spread == pytest.approx(np.median(spread), rel=1e-6)
    assert fit.error == pytest.approx(np.mean(np.abs(np.expm1(left))), rel=1e-6)
    assert fit.error < 0.9 * np.mean(np.abs(np.expm1(found)))


def test_the_likeliest_reach_signal_and_noise_are_a_maximum_of_their_density():
    random = np.random.default_rng(5)
    places, noise = random.uniform(0, 8, (25, 2)), random.normal(0, 0.02, 25)
    deviation = 0.3 * np.sin(places[:, 0]) + noise

    def density(reach: tuple[float, ...], signal: float, noise: float) -> float:
        """With a log-normal prior of each reach: around e, spread 1.5."""
        near = [[far(tuple(a), tuple(b), reach) for b in places] for a in places]
        whole = signal**2 * np.array(near) + noise**2 * np.eye(25)
        prior = sum(((math.log(r) - 1) / 1.5) ** 2 for r in reach)
        fits = deviation @ np.linalg.solve(whole, deviation)
        return float(-0.5 * (fits + np.linalg.slogdet(whole)[1] + prior))

    reach, signal, noise = operators._likeliest(places, deviation)
    best = density(tuple(reach), signal, noise)
    for factor in (0.9, 1.1):
        assert density((reach[0] * factor, reach[1]), signal, noise) < best
        assert density((reach[0], reach[1] * factor), signal, noise) < best
        assert density(tuple(reach), signal * factor, noise) < best
        assert density(tuple(reach), signal, noise * factor) < best


@pytest.mark.parametrize(
    ("deviation", "which", "least_or_most"),
    [
        (lambda x: 0 * x, 1, math.exp(-7.0)),
        (lambda x: 0 * x, 2, 3e-3),
        (lambda x: 40.0 + 0 * x, 1, math.exp(2.0)),
        (lambda x: 40.0 * (-1.0) ** np.arange(len(x)), 2, math.exp(1.0)),
        (lambda x: 40.0 * (-1.0) ** np.arange(len(x)), 0, math.exp(-1.0)),
    ],
)
def test_reach_signal_and_noise_have_limits(deviation, which, least_or_most):
    places = np.linspace(0, 8, 12)[:, None]
    found = operators._likeliest(places, deviation(places[:, 0]))
    assert np.ravel(found[which]) == pytest.approx(least_or_most)


def fitted(**change: Any) -> OperatorFit:
    """A fit made by hand, of products on 80 multiprocessors."""
    fit = OperatorFit(
        "linear", SMS, OVERHEAD_S, FLOPS, BYTES, 0, (), (), (2.0,) * 5, 0.0, 0.04, 0.1, 0.04, 0.05,
        30, (0.0, 4.0, 4.0, 4.0, 0.0), (0.0, 10.0, 10.0, 10.0, 0.0),
    )  # fmt: skip
    return replace(fit, **change)


@pytest.mark.parametrize(
    ("o", "bound", "extrapolated"),
    [
        (Operation("linear", 1, 2**10, 2**10, 2**10), "compute", False),
        (Operation("linear", 1, 2**10, 2**4, 2**10), "overhead", False),
        (Operation("linear", 1, 2**11, 2**3, 2**11), "memory", False),
        (Operation("linear", 1, 2**11, 2**3, 2**11 + 1), "memory", True),
        (Operation("linear", 1, 2**3 - 1, 2**4, 2**10), "overhead", True),
        (Operation("linear", 2, 2**10, 2**10, 2**10), "compute", False),
        (Operation("linear", 3, 2**10, 2**10, 2**10), "compute", True),
    ],
)
def test_a_prediction_is_the_roofline_and_a_band_that_doubles_outside(o, bound, extrapolated):
    (found,) = predict_operations(fitted(), [o])
    wide = math.exp(0.2 if extrapolated else 0.1)
    work_s = max(o.flops / FLOPS, o.bytes / BYTES)
    said = found.seconds, found.low_s, found.high_s, found.work_s
    seconds = OVERHEAD_S + work_s
    assert said == pytest.approx((seconds, seconds / wide, seconds * wide, work_s))
    assert (found.bound_by, found.extrapolated) == (bound, extrapolated)


def test_a_correction_is_that_of_the_neighbour_and_fades_with_the_distance():
    timed, weight, signal, noise = Operation("linear", 1, 2**8, 2**8, 2**8), 0.7, 0.3, 0.04
    fit = fitted(places=(timed.place,), weights=(weight,), signal=signal)
    near_by = [Operation("linear", 1, *sizes) for sizes in ((256, 256, 512), (32, 30, 40))]
    for o in (timed, *near_by):
        (found,) = predict_operations(fit, [o])
        near = signal**2 * far(o.place, timed.place, fit.reach)
        seconds = ideal(o) * math.exp(near * weight)
        unknown = signal**2 - near**2 / (signal**2 + noise**2)
        half = 0.1 * max(math.sqrt(noise**2 + unknown) / 0.04, 1.0)
        ends = seconds * math.exp(-half), seconds * math.exp(half)
        assert (found.seconds, found.low_s, found.high_s) == pytest.approx((seconds, *ends))
        assert found.work_s == pytest.approx(seconds - OVERHEAD_S)


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
    for _ in range(2):
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


def test_a_rate_that_nothing_was_bound_by_stays_near_what_was_seen():
    of = [Operation("linear", 1, 4, 4, int(n)) for n in range(8, 38)]
    fit = fit_operator(of, [OVERHEAD_S] * 30, SMS)
    assert fit.flops_per_s <= 31 * max(o.flops for o in of) / OVERHEAD_S


def test_each_chosen_size_is_farthest_from_those_before():
    of = shapes(40, 12)
    places = np.array([o.place for o in of])[:, 1:4]  # the sizes that differ
    places /= places.max(axis=0) - places.min(axis=0)
    naive = [5]
    while len(naive) < 30:
        rest = [i for i in range(40) if i not in naive]
        naive.append(max(rest, key=lambda i: min(math.dist(places[i], places[j]) for j in naive)))
    assert choose_sizes(of, 30, first=5) == naive
    assert choose_sizes(of, 40, first=39)[0] == 39
    assert len(choose_sizes(of)) == 30
    for count, first in ((41, 0), (8, 40), (8, -1)):
        with pytest.raises(ValueError, match="too few"):
            choose_sizes(of, count, first)


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


STARTS = Starts(operator_s=2e-6, gradient_s=3e-6, graph_s=4e-6, gap_s=5e-7, launch_s=6e-6)
BY_HAND = GpuCalibration(
    "Some GPU", "by hand", "", (fitted(), fitted(operator="elementwise", overhead_s=1e-6)), STARTS
)
ACTING = kernel("inference.dqn", envs=512, obs=16, act=0, q=(16, 64, 64, 16))


def test_a_fit_that_a_kernel_needs_must_be_there():
    for kept in BY_HAND.fits:
        with pytest.raises(CalibrationError, match="Some GPU: no fit of linear or elementwise"):
            estimate_gpu(replace(BY_HAND, fits=(kept,)), ACTING, GPU, "eager", SMS)
    assumed = estimate_gpu(replace(BY_HAND, starts=None), ACTING, GPU, "eager", SMS)
    assert assumed.source.endswith("starts of eager assumed")
    # 5 us of a launch, later ones 2.1, and 3.75 of each operator
    count = kind_of(ACTING).operations(ACTING)
    begin_s = 5e-6 + (count - 1) * 2.1e-6 + count * 3.75e-6
    assert assumed.latency_s == pytest.approx(OVERHEAD_S + begin_s)


def test_timings_of_another_driver_are_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration_of_gpus, "driver_version", lambda: "551.1")
    real = replace(GPU, real=True)
    for driver, device, rung in (
        ("551.1", real, "calibrated"), ("", real, "calibrated"), ("550.2", GPU, "calibrated"),
        ("550.2", real, "datasheet"),
    ):  # fmt: skip
        store_gpu(replace(BY_HAND, driver=driver))
        found = estimate(ACTING, device, variant="eager", width=SMS)
        assert found.rung == rung
    assert "; timed under driver 550.2, this one is 551.1: pearl calibrate times" in found.source
    monkeypatch.setattr(calibration_of_gpus, "driver_version", lambda: "")
    found = estimate(ACTING, real, variant="eager", width=SMS)
    assert "this one is unknown" in found.source
    cuda = estimate(ACTING, GPU, variant="cuda", width=SMS)
    assert (cuda.rung, cuda.parts["starts"]) == ("datasheet", 6e-6)
    assert estimate(ACTING, replace(GPU, model=""), variant="eager", width=SMS).rung == "datasheet"


def test_the_driver_is_the_one_that_nvml_names(monkeypatch):
    import pynvml

    for given, told in ((b"551.1", "551.1"), ("552", "552"), (None, "")):

        def version(given: Any = given) -> Any:
            if given is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
            return given

        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", version)
        assert calibration_of_gpus.driver_version.__wrapped__() == told


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
