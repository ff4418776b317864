"""Calibration: fits of known costs, honest bands, a file refused when it cannot be trusted."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.estimators.host import Row, bars, unseen
from pearl.testing import EstimatorContract
from pearl_devices import Buffers, Call, Device, Kernel, cpu, kernel
from pearl_devices.kernel import Module
from pearl_devices.kernels import repeats
from pearl_devices.system import host_system
from pearl_estimators import cpu as cpu_estimates
from pearl_estimators import estimate
from pearl_estimators.host import calibrate_host, calibrator
from pearl_estimators.host.benchmark_kernels import (
    bind_filled,
    draw_fit_kernels,
    draw_held_out_kernels,
    fill,
    firings_per_call,
    offered_variants,
    sum_tree,
    threaded_kernels,
)
from pearl_estimators.host.calibration import Calibration, estimate_from, host, versions
from pearl_estimators.host.calibration_file import store
from pearl_estimators.host.linear_fit import (
    BAND_FLOOR,
    Fit,
    Point,
    family,
    fit_variant,
    fit_variants,
    point,
    predict,
)
from pearl_estimators.host.random_kernels import DRAWS, draw_kernels, sizes
from pearl_estimators.host.timer import time_call
from tests.calibrations import KERNELS, LANES, measure, synthetic, truth
from tests.needs import needs_torch

HOST = Device("host", "cpu", width=2, real=True, idle_power_w=10.0, active_power_w=50.0)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    found = measure(1.0, kernels=KERNELS, prepare=synthetic(0.02))
    return replace(found, runtime=LANES)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    return tmp_path


# --- the fit


DQN = {"obs": 4, "act": 0, "q": (4, 64, 64, 2), "double": 1}


def made(family: str, numbers: dict[str, float], seconds: float) -> Point:
    return Point(family, "native", numbers, 1e6, 1e6, seconds)


def test_what_terms_cost_is_recovered_from_their_own_times():
    rng = np.random.default_rng(0)
    costs = {"call a": 2e-6, "call b": 5e-6, "cycles": 2.5e-10, "adam": 1e-9}
    points = []
    for _ in range(8):
        for name in "ab":
            numbers = {f"call {name}": 1.0, "cycles": 10 ** rng.uniform(3, 7)}
            numbers["adam"] = 10 ** rng.uniform(2, 5)
            points.append(made(name, numbers, sum(costs[n] * x for n, x in numbers.items())))
    a, b = fit_variant(points)
    assert {**a.costs, **b.costs} == pytest.approx(costs, rel=1e-6)
    assert a.costs["cycles"] == b.costs["cycles"]
    assert (a.band, b.band) == (BAND_FLOOR, BAND_FLOOR)
    assert max(a.error, b.error) < 1e-6


def test_a_call_on_two_cores_has_the_replay_of_one():
    """What a level of the tree costs is the same in all points of the pair, and known from one
    core; what acts on one core elsewhere says nothing of it."""
    points = []
    for n in range(1, 9):
        for name, variant, numbers, seconds in (
            ("replay_update", "native", {"leaf": n, "level": n * n}, n * 2e-7 + n * n * 3e-8),
            ("learn.dqn", "native-pair", {"leaf": n, "level": n}, n * 2.3e-7),
            ("inference.dqn", "native", {"leaf": n}, n * 1e-3),
        ):
            points.append(Point(name, variant, numbers, 1e6, 1e6, seconds))
    found = {(f.family, f.variant): f for f in fit_variants(points)}
    assert set(found) == {(p.family, p.variant) for p in points}
    costs = found["learn.dqn", "native-pair"].costs
    assert costs == pytest.approx({"leaf": 2e-7, "level": 3e-8}, rel=1e-3)
    assert found["learn.dqn", "native-pair"].points == 8


def test_no_cost_is_negative_whatever_the_times():
    rng = np.random.default_rng(2)
    for _ in range(20):
        points = [
            made("a", dict(zip("uvwx", 10 ** rng.uniform(0, 6, 4), strict=True)), seconds)
            for seconds in 10 ** rng.uniform(-6, -3, 6)
        ]
        assert min(fit_variant(points)[0].costs.values()) >= 0


def test_the_band_holds_nine_tenths_of_new_kernels():
    held = total = 0
    drawn_later = [(k, v) for name in ("inference.dqn", "update.ddpg", "gae") for k, v in new(name)]
    for seed in range(3):
        noise = 0.08
        found = measure(1.0, kernels=KERNELS, prepare=synthetic(noise, seed=seed))
        rng = np.random.default_rng(1000 + seed)
        for k, v in drawn_later:
            f = found.find(k, v)
            assert f is not None
            guess = predict(f, point(k, v, 1.0))
            measured = truth(k, v) * math.exp(noise * rng.standard_normal())
            held += guess.low_s <= measured <= guess.high_s
            total += 1
    assert total > 100
    assert 0.84 <= held / total <= 0.99


def new(name: str) -> list[tuple[Kernel, str]]:
    kernels = islice(draw_kernels([name], 99, most_flops=1e8, most_steps=8), 8)
    return [(k, v) for _, k in kernels for v in offered_variants(k)]


def test_an_estimate_by_timings_of_another_host_names_it(calibration, monkeypatch):
    monkeypatch.setattr(calibrator, "calibration", lambda *_: calibration)
    monkeypatch.setattr(calibrator, "MEASURED_BY", {"b": None})
    step = kernel("update.dqn", DQN, batch=64, steps=1)
    for name, named in (("b", "b"), ("", "this host"), ("c", "this host")):
        found = cpu_estimates._estimate_alone(step, replace(HOST, host=name), "native", 1)
        assert found.source.startswith(f"calibrated on {named} ")


def test_no_fit_stands_for_a_network_whose_layers_it_does_not_count(cache, calibration):
    """A dense network of the same outline is calibrated; a convolution in its place is not."""
    store(calibration)
    sizes: dict[str, Any] = {"obs": 784, "act": 0, "batch": 32, "steps": 1, "double": 1}
    conv = Module(
        "mine:conv", (1, 28, 28), 10, params=50_000, flops=5e6, numbers=20_000, operations=6
    )
    loss = "pearl.algorithms.dqn:losses"
    dense = kernel("update.dqn", q=(784, 10), program=loss, **sizes)
    own = kernel("update.dqn", q=(784, 10), program=loss, modules={"q": conv}, **sizes)
    timed = estimate(dense, HOST, variant="torch")
    guess = estimate(own, HOST, variant="torch")
    assert (timed.rung, guess.rung) == ("calibrated", "datasheet")
    assert re.search(r"not timed: .*mine", guess.source)
    assert guess.latency_s == estimate(own, replace(HOST, real=False), variant="torch").latency_s


def test_the_band_of_a_family_is_that_of_its_points_each_left_out():
    """Kept values, equal to those of `scipy.optimize.lsq_linear` and sums written out by hand:
    residuals of ten fits to nine tenths, 4 points' worth of the variant's in each band."""
    costs = {"call a": 2e-6, "call b": 5e-6, "cycles": 2e-10, "adam": 1e-9}
    points = []
    for n in range(13):
        numbers = {f"call {'ab'[n % 2]}": 1.0, "cycles": 10.0 ** (2 + n / 2)}
        if n % 2:
            numbers["adam"] = 10.0 ** (6 - n / 3)
        seconds = sum(costs[name] * x for name, x in numbers.items()) * math.exp(
            0.1 * math.sin(7 * n)
        )
        points.append(
            Point("ab"[n % 2], "native", numbers, 10.0**n, 2.0**n, seconds, spread=0.01 * n)
        )
    a, b = fit_variant(points)
    cycles = 2.027954134791e-10
    assert a.costs == pytest.approx({"call a": 2.084527607129e-6, "cycles": cycles}, rel=1e-6)
    assert b.costs == pytest.approx(
        {"call b": 5.098578065468e-7, "cycles": cycles, "adam": 1.112622821105e-9}, rel=1e-6
    )
    assert (a.band, a.error) == pytest.approx((0.1272242494429, 0.0805061935983), rel=1e-6)
    assert (b.band, b.error) == pytest.approx((0.1058904754207, 0.0508687841534), rel=1e-6)
    assert (a.points, a.flops, a.bytes) == (7, (1.0, 1e12), (1.0, 4096.0))
    spread = [replace(p, spread=0.2 + p.spread) for p in points]
    assert [f.band for f in fit_variant(spread)] == pytest.approx([0.26, 0.26])  # medians


@pytest.mark.parametrize(
    ("flops", "moved", "extrapolated"),
    [(5.0, 600.0, False), (200.0, 50.0, False), (4.9, 100.0, True), (201.0, 100.0, True),
     (10.0, 49.0, True), (10.0, 601.0, True)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("counts", "bound_by"),
    [((3.0, 2.0, 1.0), "overhead"), ((1.0, 8.0, 3.0), "compute"), ((1.0, 1.0, 2.0), "memory")],
)
def test_a_prediction_is_the_sum_of_its_terms_and_its_band_doubles_beyond_twice_the_sizes(
    flops, moved, extrapolated, counts, bound_by
):
    costs = {"call x": 1.0, "cycles": 0.5, "miss_row 2": 1.0, "unused": 7.0}
    fit = Fit("x", "native", costs, 0.1, 0.0, 4, (10.0, 100.0), (100.0, 300.0))
    numbers = dict(zip(("call x", "cycles", "miss_row 2"), counts, strict=True)) | {"unknown": 9.0}
    found = predict(fit, Point("x", "native", numbers, flops, moved, 1.0))
    seconds, half = counts[0] + counts[1] / 2 + counts[2], 0.2 if extrapolated else 0.1
    assert (found.seconds, found.low_s, found.high_s) == pytest.approx(
        (seconds, seconds * math.exp(-half), seconds * math.exp(half))
    )
    assert (found.bound_by, found.extrapolated) == (bound_by, extrapolated)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({}, ""),
        ({"contention": 1.1}, ""),
        ({"contention": 1.11}, "; noisy: the machine was shared while measuring, band widened"),
        ({"doubts": {"update.dqn native": 1.84}},
         "; in doubt: a run took 1.84 x the estimate, timed again when quiet"),
        ({"doubts": {"update.dqn torch": 1.84}}, ""),
    ],
)  # fmt: skip
def test_an_estimate_says_what_its_calibration_rests_on(change, more):
    whole = (0.0, 1e12)
    fit = Fit("update.dqn", "native", {"call update.dqn": 2e-6}, 0.1, 0.0, 14, whole, whole)
    known = Calibration({}, {}, "2026-01-02T03:04:05Z", 1.0, 0.0, 1.0, (fit,))
    step = kernel("update.dqn", DQN, batch=64, steps=1)
    for name, named in (("", "this host"), ("b", "b")):
        found = estimate_from(fit, replace(known, **change), step, "native", name)
        assert found.source == f"calibrated on {named} 2026-01-02, 14 points{more}"
        assert (found.latency_s, found.low_s, found.high_s) == pytest.approx(
            (2e-6, 2e-6 * math.exp(-0.1), 2e-6 * math.exp(0.1))
        )
    narrow = replace(fit, flops=(0.0, 1.0))
    assert "14 points; outside the calibrated sizes, band doubled" in (
        estimate_from(narrow, known, step, "native").source
    )


@pytest.mark.parametrize(
    "change",
    [{"costs": {"a": -1.0}}, {"costs": {"a": 0.0}}, {"band": math.inf}, {"error": -0.1},
     {"flops": (0.0, math.nan)}, {"bytes": (-1.0, 2.0)}],
)  # fmt: skip
def test_a_fit_of_impossible_numbers_is_refused(change):
    fit = Fit("x", "native", {"a": 1.0, "b": 0.0}, 0.1, 0.0, 4, (1.0, 2.0), (1.0, 2.0))
    with pytest.raises(ValueError, match="fit of x native: numbers are"):
        replace(fit, **change)


@pytest.mark.parametrize("name", ["wall_s", "load", "contention", "apart_s"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_calibration_of_impossible_numbers_is_refused(name, value):
    known = Calibration({}, {}, "", 0.0, 0.0, 0.0, ())
    with pytest.raises(ValueError, match=f"calibration: {name} is"):
        replace(known, **{name: value})
    with pytest.raises(ValueError, match=r"calibration: doubts\.a is"):
        replace(known, doubts={"a": value})


def test_the_versions_name_everything_that_times_depend_on():
    found = versions()
    assert list(found) == [
        "python", "pearl-toolkit", "numpy", "numba", "scipy", "torch", "gymnasium", "kernels"
    ]  # fmt: skip
    assert found["python"] == ".".join(platform.python_version_tuple())
    assert re.fullmatch("[0-9a-f]{16}", found["kernels"])
    if listing := host_system.chip().listing:
        block = listing.split("\n\n")[0]
        names = ("model name", "cpu family", "model", "stepping")
        fields = [re.search(rf"^{n}\s*: (.*)$", block, re.M) for n in names]
        assert host()["cpu"] == ", ".join(f[1] for f in fields if f)
    assert host()["cores"] == str(os.cpu_count())


# --- the terms


@pytest.mark.parametrize("name", ["seconds", "share", "unsteady"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_refused(name, value):
    point = made("made", {"call": 1.0}, 1e-6)
    with pytest.raises(ValueError, match=rf"point of made native: {name} is"):
        replace(point, **{name: value})
    assert [replace(point, share=share).loaded for share in (1 / 1.1, 0.9)] == [False, True]


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match=r"3 points; it needs at least 4"):
        fit_variant([made("made", {"call": f}, 1e-6) for f in (1.0, 2.0, 3.0)])


# --- the points


def test_the_tree_that_kernels_are_timed_on_is_consistent():
    tree = sum_tree(1000, 8, np.random.default_rng(0))
    assert tree[0] == pytest.approx(tree[-1000:].sum(), rel=1e-5)
    assert tree[0] == pytest.approx(tree[1:9].sum(), rel=1e-5)


def test_kernels_timed_stay_finite():
    for k in (
        kernel("update.dqn", obs=4, act=0, q=(4, 32, 2), batch=32, steps=1, double=1),
        kernel("update.ddpg", obs=3, act=1, actor=(3, 32, 1), critic=(4, 32, 1), batch=32, steps=2),
    ):
        from pearl_devices import backend
        from pearl_devices.buffers import allocate

        buffers = allocate([k])
        fill(buffers, k)
        call = backend("cpu").bind(k, "native", buffers)
        for _ in range(50):
            call()
        assert all(np.isfinite(a).all() for a in buffers.values())


def test_a_real_kernel_is_timed_and_more_of_it_takes_longer():
    """By CPU time: 128 times the work."""
    small, large = (
        time_call(
            bind_filled(kernel("inference.dqn", envs=n, obs=4, act=0, q=(4, 64, 64, 2)), "native"),
            seconds=0.02,
        )
        for n in (2, 256)
    )
    assert 0 < small.median_s < large.median_s


# --- measuring


@needs_torch
def test_every_family_is_really_timed_in_every_variant():
    """By what a first use calls: other tests plan by the times of an imagined machine."""
    jobs = {f"{family(k)} {v}": (k, v) for k, v in reversed(KERNELS)}
    told = []
    still = {"apart": lambda: 1e-6, "pause": lambda _: None}
    calibrate_host.time_points(0.1, jobs.values(), told.append, **still)
    points = [Point(**found["point"]) for found in told if "point" in found]
    assert {p.named for p in points} == jobs.keys()
    assert min(p.seconds for p in points) > 0
    assert np.median([p.seconds for p in points]) < 0.1


def test_a_shared_machine_is_called_noisy_and_its_bands_are_wider():
    quiet, noisy = (
        measure(1, kernels=KERNELS, prepare=synthetic(0.0, contention=c)) for c in (1.0, 1.6)
    )
    assert (quiet.noisy, noisy.noisy) == (False, True)
    assert noisy.fits[0].band == pytest.approx(noisy.contention * quiet.fits[0].band)
    k = kernel("replay_insert", envs=8, obs=4, act=0, capacity=800, fanout=16, prioritised=0)
    e = estimate_from(noisy.fits[0], noisy, k, "native")
    assert "noisy" in e.source


# --- the rung


class TestCalibrated(EstimatorContract):
    device = HOST
    rung = "calibrated"
    kernels = tuple(draw_held_out_kernels())

    @pytest.fixture(autouse=True)
    def stored(
        self, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
        store(calibration)


def test_what_was_not_calibrated_falls_to_the_datasheet_and_says_so(cache, calibration):
    store(calibration)
    k = kernel("env_step", program="Nowhere-v5", envs=4, obs=105, act=8)
    e = estimate(k, HOST)
    assert e.rung == "datasheet"
    assert "Nowhere-v5 never timed; it could not be timed: " in e.source


def test_a_cpu_elsewhere_is_not_calibrated(cache):
    k = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 2))
    assert estimate(k, replace(HOST, real=False)).rung == "datasheet"


# --- the benchmark


def test_what_the_benchmark_times_is_of_every_family_and_no_calibration_point():
    jobs = unseen(80, 5)
    known = {sizes(k) for k in (*draw_fit_kernels(), *draw_held_out_kernels())}
    assert len({(sizes(k), v) for _, v, k in jobs}) == 80
    assert not known & {sizes(k) for _, _, k in jobs}
    assert {name for name, _, _ in jobs} == set(DRAWS)


def test_bars_are_missed_where_errors_are_large_and_repeats_small():
    near = Row("a", "native", "", "calibrated", 1.02e-6, 0.9e-6, 1.1e-6, 1e-6, 1.01e-6)
    far = replace(near, predicted_s=1.5e-6, low_s=1.4e-6, high_s=1.6e-6)
    assert [bar.met for bar in bars([near] * 9 + [far])] == [True, True, True]
    assert [bar.met for bar in bars([far] * 6 + [near] * 4)] == [False, False, False]
    loud = replace(far, again_s=1.6e-6)  # no estimate is nearer than what is measured repeats
    assert [bar.met for bar in bars([loud] * 6 + [near] * 4)] == [True, True, False]


def test_what_was_timed_before_takes_part_in_the_next_fit() -> None:
    mine = [(k, v) for k in draw_fit_kernels(["replay"]) for v in offered_variants(k)]
    rest = [(k, v) for k in draw_fit_kernels(["dqn"]) for v in offered_variants(k)]
    first = measure(1.0, kernels=mine, prepare=synthetic(0.02))
    both = measure(1.0, kernels=rest, known=first, prepare=synthetic(0.02))
    assert first.groups == ("replay",)
    assert both.groups == ("dqn", "replay")
    assert both.points[: len(first.points)] == first.points
    assert sum(f.points for f in both.fits) == len(mine) + len(rest) + len(
        list(threaded_kernels(["dqn"]))
    )
    again = Calibration.from_json(both.to_json())
    assert again == both


def test_every_call_of_many_iterations_is_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Buffers] = []
    plain = cpu.bind

    def noted(of: Kernel, variant: str, buffers: Buffers) -> Call:
        given.append(buffers)
        return plain(of, variant, buffers)

    monkeypatch.setattr(cpu, "bind", noted)
    of = next(k for k in draw_fit_kernels(["dqn"]) if repeats(k) and firings_per_call(k) > 1)
    call = bind_filled(of, "native")
    steps = [int(given[0]["learner.step"][0])]
    for _ in range(3):
        call()
        steps.append(int(given[0]["learner.step"][0]))
    assert np.diff(steps).tolist() == [firings_per_call(of) * of.dim("steps")] * 3
