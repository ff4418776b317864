"""The process that times kernels, by a clock that stands still unless a test moves it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_devices import Kernel, UnsupportedError
from pearl_estimators.host import calibrate_host
from pearl_estimators.host.benchmark_kernels import draw_fit_kernels
from pearl_estimators.host.calibration import HeldOutTiming
from pearl_estimators.host.calibration_updates import empty_calibration
from pearl_estimators.host.linear_fit import Fit, point
from pearl_estimators.host.timer import Timing

ACTING = list(draw_fit_kernels(["inference.dqn"]))[:2]


class Clock(SimpleNamespace):
    """Stands for the module `time`: only `sleep` moves it."""

    now_s = 50.0

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(slept=[])
    monkeypatch.setattr(calibrate_host, "time", clock)
    monkeypatch.setattr(
        calibrate_host, "offered_variants", lambda _: {"native": 1, "native-pair": 2, "torch": 1}
    )
    return clock


def timings(rows: Iterable[tuple[float, float]], given: list[float]) -> calibrate_host.Prepare:
    """A `prepare` whose timers give these medians and contentions in turn, whoever asks, and note
    the seconds that they were given."""
    each = iter(rows)

    def timer(seconds: float) -> Timing:
        given.append(seconds)
        median_s, contention = next(each)
        return Timing(median_s, median_s, median_s, 8, median_s / 100, contention)

    return lambda kernel, variant: timer


@pytest.mark.parametrize(
    ("seconds", "each"),
    [
        (0.06, [0.7 * 0.06 / (3 * 2)] * 2 + [0.7 * 0.06 / (2 * 2)] * 2 + [0.015] * 2),
        (0.012, [0.004] * 4 + [0.7 * 0.012 / 2] * 2),
    ],
)
def test_points_share_seven_tenths_of_the_time_left_within_their_bounds(
    clock: Clock, seconds: float, each: list[float]
) -> None:
    given, told = list[float](), list[Any]()
    rows = [(9.0, 1.0), (2.0, 1.0), (3.0, 1.25), (4.0, 1.0), (6.0, 1.0), (1.0, 2.0)]
    jobs = [(k, "native") for k in ACTING]
    made = timings(rows, given)
    still = {"apart": lambda: 1.0, "pause": clock.sleep}
    assert calibrate_host.time_points(seconds, jobs, told.append, prepare=made, **still) == 0.0
    assert given == pytest.approx(each)
    found = [(p["seconds"], p["spread"], p["share"], p["unsteady"]) for p in map(_point, told)]
    assert found == [
        (9, 0.09, 1, 1), (2, 0.02, 1, 1), (3, 0.03, 0.8, 3), (2, 0.02, 1, 2), (3, 0.03, 0.8, 3),
        (1, 0.01, 0.5, 4),
    ]  # fmt: skip
    assert told[0]["point"]["terms"] == dict(point(ACTING[0], "native", 1.0).terms)


def _point(found: dict[str, Any]) -> dict[str, Any]:
    return found["point"]  # type: ignore[no-any-return]


NEAR = [1.0, 1.1, 1.3, 1.45, 1.6, 1.7, 9.0, 9.0, 1.9, 2.1, 2.3, 2.5]
"""Latencies before and after each timing; the fourth smallest is their lower quartile."""


def on_pairs(
    clock: Clock, near: list[float], rows: list[tuple[float, float]], **options: Any
) -> tuple[float, list[Any], int]:
    """Time two calls on two cores. Return the latency, what was told, and the number of timings."""
    given, told, reads = list[float](), list[Any](), iter([*near, *[7.0] * 99])
    found = calibrate_host.time_points(
        *(1.0, [(k, "native-pair") for k in ACTING], told.append),
        prepare=timings([*rows, *[(8.0, 1.0)] * 99], given), apart=lambda: next(reads),
        pause=clock.sleep, **options,
    )  # fmt: skip
    return found, told, len(given)


ROWS = [(5.0, 1.0), (6.0, 1.0), (7.0, 1.0), (1.0, 1.5), (2.0, 1.0), (3.0, 1.1)]


def test_calls_on_two_cores_count_at_the_lower_quartile_of_their_latencies(clock: Clock) -> None:
    """Those of the second timing of the first kernel and of the first of the second are alike."""
    found, told, count = on_pairs(clock, NEAR, [(s, 1.0) for s, _ in ROWS])
    assert found == 1.45
    assert told[0] == {"apart_s": 1.45}
    assert [p["seconds"] for p in map(_point, told[1:])] == [7.0, 6.0]
    assert [p["share"] for p in map(_point, told[1:])] == [1.0, 1.0]
    assert (clock.slept, count) == ([], 6)


@pytest.mark.parametrize(("pause_s", "rounds"), [(None, 10), (0.25, 9), (0.0625, 20)])
def test_calls_never_timed_at_the_latency_are_tried_for_two_seconds_and_twenty_times(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, pause_s: float | None, rounds: int
) -> None:
    """Then those count that had both cores."""
    if pause_s:
        monkeypatch.setattr(calibrate_host, "PAUSE_S", pause_s)
    found, told, count = on_pairs(clock, NEAR, ROWS, apart_s=4.0)
    assert clock.slept == [pause_s or 0.2] * rounds
    assert count == 6 + 2 * rounds
    assert (found, told[0]) == (4.0, {"apart_s": 4.0})
    assert [p["seconds"] for p in map(_point, told[1:])] == [2.0, 3.0]


def test_without_both_cores_no_latency_is_told_and_every_timing_counts(clock: Clock) -> None:
    found, told, count = on_pairs(clock, NEAR, [(s, 2.0) for s, _ in ROWS])
    assert (found, count, clock.slept) == (0.0, 6, [])
    assert [(p["seconds"], p["share"]) for p in map(_point, told)] == [(2.0, 0.5), (1.0, 0.5)]


def test_a_family_that_cannot_be_bound_is_skipped_once(clock: Clock) -> None:
    asked = list[str]()

    def prepare(kernel: Kernel, variant: str) -> Callable[[float], Timing]:
        asked.append(variant)
        if variant == "torch":
            raise UnsupportedError("no torch")
        return lambda _: Timing(1.0, 1.0, 1.0, 8, 0.0, 1.0)

    told = list[Any]()
    jobs = [(k, v) for v in ("torch", "native") for k in ACTING]
    still = {"apart": lambda: 1.0, "pause": clock.sleep}
    calibrate_host.time_points(1.0, jobs, told.append, prepare=prepare, **still)
    assert asked == ["torch", "native", "native"]
    assert told[0] == {"skipped": {"inference.dqn torch": "no torch"}}
    assert len(told) == 1 + 3 * 2


@pytest.mark.parametrize(
    ("shares", "contentions", "calls", "seconds"),
    [
        ([1 / 1.1] * 4, (1.0, 1.1, 1.2), 9, [2.0] * 3),  # a fourth kernel would begin after 9 s
        ([1.0, 1.0, 0.6], (1.0, 1.0, 1.0), 6, [1.0] * 2),
        ([1.0] * 4, (2.0, 2.0, 2.0), 9, []),  # without all of its cores
    ],
)
def test_threads_are_timed_for_six_seconds_while_their_cores_are_free(
    clock: Clock, shares: list[float], contentions: Any, calls: int, seconds: list[float]
) -> None:
    given, told, each = list[float](), list[Any](), iter(shares)

    def share(cores: int) -> float:
        assert cores == 2
        clock.now_s += 3.0
        return next(each)

    rows = list(zip((3.0, 2.0, 1.0), contentions, strict=True)) * 3
    jobs = [(k, "torch-2") for k in [*ACTING, *ACTING]]
    calibrate_host.time_threads(jobs, told.append, prepare=timings(rows, given), share=share)
    assert given == [0.015] * calls
    assert [p["seconds"] for p in map(_point, told)] == seconds


@pytest.mark.parametrize(
    ("near", "shares", "slept", "costs"),
    [
        ([False, True], (1 / 1.1,), 1, {"n": 2}),
        ([False] * 99, (1 / 1.1,), 10, {"n": 11}),
        ([], (0.7,), 10, {}),  # not measured without two cores
        ([True] * 99, (1.0, 0.5), 10, {}),  # nor counted if one is lost meanwhile
    ],
)
def test_the_costs_of_lanes_are_those_at_the_latency_or_the_last_within_two_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, near: Any, shares: Any, slept: int, costs: Any
) -> None:
    turn, share = iter(near), cycle(shares)
    monkeypatch.setattr(
        "pearl_devices.primitives.math.core_latency.as_near",
        lambda measure, apart_s: (measure(), apart_s == 3.0 and next(turn)),
    )
    count = iter(range(1, 99))
    found = calibrate_host._runtime(
        3.0, lambda: {"n": next(count)}, lambda cores: next(share) * (cores == 2)
    )
    assert found == costs
    assert clock.slept == [0.2] * slept


def test_held_out_kernels_are_timed_in_three_rounds_and_the_fastest_counts(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_host, "draw_held_out_kernels", lambda: ACTING)
    monkeypatch.setattr(calibrate_host, "offered_variants", lambda _: ("native",))
    fit = Fit(
        *("inference.dqn", "native", {"call inference.dqn": 2e-6}, 0.1, 0.0, 4),
        flops=(0.0, 1e12), bytes=(0.0, 1e12),
    )  # fmt: skip
    base = empty_calibration().__class__(**{**vars(empty_calibration()), "fits": (fit,)})
    for seconds, each in ((0.06, 0.01), (0.012, 0.004), (60.0, 0.015)):
        given = list[float]()
        rows = [(s * 1e-6, 1.0) for s in (5, 4, 1, 6, 3, 2)]
        found = calibrate_host.time_held_out(base, seconds=seconds, prepare=timings(rows, given))
        assert given == pytest.approx([each] * 6)
        assert [(r.predicted_s, r.measured_s) for r in found] == [(2e-6, 1e-6), (2e-6, 2e-6)]
    sizes = ", ".join(f"{k} {v}" for k, v in ACTING[0].dims.items())
    assert (found[0].kernel, found[0].variant) == (f"inference.dqn ({sizes})", "native")
    assert (found[0].error, found[1].error) == (1.0, 0.0)
    assert [r.held for r in found] == [False, True]
    low, high = found[0].low_s, found[0].high_s
    assert [HeldOutTiming("", "", 1, s, low, high).held for s in (low, high)] == [True, True]


@pytest.mark.parametrize(
    ("cores", "runtime", "there"), [(1, "pearl.x", 0), (2, "no_such.x", 0), (2, "pearl.x", 1)]
)
def test_lanes_are_measured_only_with_two_cores_and_a_runtime(
    monkeypatch: pytest.MonkeyPatch, cores: int, runtime: str, there: int
) -> None:
    told, given = list[Any](), list[float]()
    for name, stand in {
        "CORES": cores, "RUNTIME": runtime, "_runtime": lambda apart_s: {"apart": apart_s},
        "time_points": lambda seconds, *_, apart_s: given.append(seconds) or 4.0,
        "time_threads": lambda *_: None,
        "interference": SimpleNamespace(measure_slowdowns=lambda *_: {}),
    }.items():  # fmt: skip
        monkeypatch.setattr(calibrate_host, name, stand)
    for seconds in (30.0, 10.0):
        calibrate_host.measure_all(seconds, ["inference.dqn"], empty_calibration(), told.append)
    assert given == [22.0, 5.0]
    assert told == [{"runtime": {"apart": 4.0}}, {"beside": {}}] * 2 * there


@pytest.mark.parametrize(
    ("only", "measured"),
    [
        (None, ()),
        ([], (2.5, ["dqn"], empty_calibration(), "j")),
        (["x"], (2.5, (["x"], ["dqn"], empty_calibration()), "j", 0.0)),
    ],
)
def test_the_first_line_of_input_is_checked_or_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, only: Any, measured: tuple[Any, ...]
) -> None:
    """only: the codes to time again; None: a check."""
    base, calls = empty_calibration(), list[Any]()
    rows = [HeldOutTiming("a", "b", 2.0, 1.0, 1.0, 3.0)]
    for name, stand in {
        "time_held_out": lambda known, seconds: rows * (known == base and seconds == 2.5),
        "journal_writer": str, "select_jobs": lambda *asked: asked, "_end_with_parent": abs,
        "time_points": lambda *a, apart_s: calls.append((*a, apart_s)),
        "measure_all": lambda *a: calls.append(a),
    }.items():  # fmt: skip
        monkeypatch.setattr(calibrate_host, name, stand)
    whole = {"groups": ["dqn"], "known": base.to_json(), "journal": "j", "only": only}
    request = json.dumps(base.to_json() if only is None else whole)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{request}\nmore"))
    calibrate_host.main(["check" if only is None else "measure", "2.5"])
    said = json.loads(capsys.readouterr().out)
    assert (said, calls) == (
        ([asdict(r) for r in rows], []) if only is None else (None, [measured])
    )
