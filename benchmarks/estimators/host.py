"""This host's kernels: what its calibration predicts, beside what random unseen ones take.

300 kernels (`pearl_estimators.host.random_kernels`), none a calibration point, each measured twice:
passes over all kernels are in turn of the first and of the second measurement, so that the same
time of another minute is the repeat error, beside the error of the estimate. Time is CPU time as in
`pearl calibrate`: of a pass the median, of passes the fastest. The host is calibrated anew first;
--quick takes the stored calibration. In the same passes some of the calibration's own points are
timed again: how far off they are is how much the machine has changed since, and in no bar. Beside
it stands what would be said without a calibration, the datasheet rung.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.bars import Bar, Part
from pearl_devices import Device, Kernel, discover, offers, torch_threads
from pearl_devices.base import OPT_IN_VARIANTS, Call
from pearl_devices.primitives.math.core_latency import as_near
from pearl_estimators import estimate
from pearl_estimators.host.benchmark_kernels import (
    CORES,
    bind_filled,
    draw_fit_kernels,
    draw_held_out_kernels,
    firings_per_call,
)
from pearl_estimators.host.features import terms
from pearl_estimators.host.measuring import calibrate
from pearl_estimators.host.random_kernels import DRAWS, MOST_BYTES, draw_kernels, sizes
from pearl_estimators.host.timer import HELD, time_call

COUNT, QUICK_COUNT = 300, 40
AGAIN, QUICK_AGAIN = 60, 20
"""Points of the calibration that are timed again."""
SEED = 3141
MOST_FLOPS, MOST_STEPS = 3e9, 64  # of a firing: more would take too long to time
ROUND_TRIP = 8  # kernels of one family and variant, at most
HOST = Device("host", "cpu", width=CORES, real=True)
DATASHEET = replace(discover.host().device("cpu"), real=False)
"""The same as a platform file describes it: nothing is timed."""
ROUNDS = 3
ROUND_S = 0.01  # time of one kernel in one pass, at least
TRIES = 3  # timings of a call on two cores in one pass, at most
WAIT_S, QUICK_WAIT_S, PAUSE_S = 180.0, 10.0, 0.5
"""For the cores to be as far apart as when they were calibrated."""
MEDIAN, NINTH, REPEATS, BAND = 0.05, 0.15, 1.5, (0.85, 0.95)


@dataclass(frozen=True)
class Row:
    """One kernel. seconds, again_s: two measurements. datasheet_s: predicted by that rung, 0 where
    that was not asked."""

    family: str
    variant: str
    sizes: str
    rung: str
    predicted_s: float
    low_s: float
    high_s: float
    seconds: float
    again_s: float
    datasheet_s: float = 0.0

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.seconds - 1)

    @property
    def repeat(self) -> float:
        return abs(self.again_s / self.seconds - 1)

    @property
    def held(self) -> bool:
        return self.low_s <= self.seconds <= self.high_s


def cores(of: Kernel, variant: str) -> int:
    return dict(offers(of, HOST))[variant]


def offered(of: Kernel) -> list[str]:
    """The variants of a kernel here, those left out that a plan has only where they are named."""
    return [name for name, _ in offers(of, HOST) if name not in OPT_IN_VARIANTS]


def unseen(count: int, seed: int) -> list[tuple[str, str, Kernel]]:
    """(family, variant, kernel), none a calibration point: every family and variant in turn, in an
    order of its own, so that each is there as often as any other, or once more."""
    known = {sizes(of) for points in (draw_fit_kernels(), draw_held_out_kernels()) for of in points}
    found: list[list[tuple[str, str, Kernel]]] = []
    for name in DRAWS:
        fresh = draw_kernels([name], seed, most_flops=MOST_FLOPS, most_steps=MOST_STEPS)
        kernels = (of for _, of in fresh if sizes(of) not in known)
        for variant in offered(next(kernels)):
            able = (of for of in kernels if variant in offered(of))
            found.append([(name, variant, next(able)) for _ in range(ROUND_TRIP)])
    turns = [turn for turns in zip(*found, strict=True) for turn in turns]
    order = np.random.default_rng(seed).permutation(len(found))
    jobs = [turns[len(found) * k + int(p)] for k in range(ROUND_TRIP) for p in order]
    return jobs[:count]


def timed(jobs: list[tuple[Kernel, str]], wait_s: float) -> list[tuple[float, float]]:
    """Seconds of each kernel, measured twice: passes over all kernels are in turn of the first and
    of the second measurement, with arrays bound anew. Of calls on two cores those count in which
    these were as far apart as when they were calibrated, where there are any."""
    found: list[tuple[list[float], list[float]]] = [([], []) for _ in jobs]
    others: list[tuple[list[float], list[float]]] = [([], []) for _ in jobs]
    for turn in range(2 * ROUNDS):
        for (of, variant), counted, rest in zip(jobs, found, others, strict=True):
            call = bind_filled(of, variant)
            for _ in range(TRIES):
                seconds, counts = one_timing(call, of, variant)
                (counted if counts else rest)[turn % 2].append(seconds)
                if counts:
                    break
    begin = time.monotonic()
    while time.monotonic() - begin < wait_s:
        lacking = [n for n, both in enumerate(found) if not all(both)]
        if not lacking:
            break
        time.sleep(PAUSE_S)
        for n in lacking:
            seconds, counts = one_timing(bind_filled(*jobs[n]), *jobs[n])
            if counts:
                found[n][len(found[n][0]) > len(found[n][1])].append(seconds)
    either = [
        [f or o for f, o in zip(both, more, strict=True)]
        for both, more in zip(found, others, strict=True)
    ]
    return [(min(first), min(second)) for first, second in either]


def one_timing(call: Call, of: Kernel, variant: str) -> tuple[float, bool]:
    """Seconds of a firing, and whether they count."""
    wide, busy = cores(of, variant), torch_threads.threads_of(variant) == 1
    if wide == 1:
        return time_call(call, seconds=ROUND_S, firings=firings_per_call(of)).median_s, True
    apart_s = calibrate().apart_s
    one, near = as_near(
        lambda: time_call(call, seconds=ROUND_S, computes=busy, cores=wide), apart_s
    )
    return one.median_s, near and one.contention <= HELD


def calibrated_points(count: int, seed: int) -> list[tuple[str, Kernel, float, float]]:
    """(variant, kernel, seconds, spread) of so many points of the calibration."""
    found, known = [], {(p.variant, *sorted(p.terms.items())): p for p in calibrate().points}
    for of in draw_fit_kernels():
        for variant in offered(of):
            p = known.get((variant, *sorted(terms(of, variant).items())))
            if p is not None:
                found.append((variant, of, p.seconds, p.spread))
    chosen = np.random.default_rng(seed).permutation(len(found))[:count]
    return [found[int(n)] for n in chosen]


def rows_of(count: int, again: int, seed: int, wait_s: float) -> tuple[list[Row], list[Row]]:
    """Of unseen kernels, and of points of the calibration, whose prediction is what it measured."""
    import torch

    torch.set_num_threads(1)  # as the calibration has it
    jobs, points = unseen(count, seed), calibrated_points(again, seed)
    guesses = [estimate(of, HOST, variant=v, width=cores(of, v)) for _, v, of in jobs]
    times = timed([(of, v) for _, v, of in jobs] + [(of, v) for v, of, *_ in points], wait_s)
    rows = []
    for (name, variant, of), e, both in zip(jobs, guesses, times[: len(jobs)], strict=True):
        said = e.rung, e.latency_s, e.low_s, e.high_s
        sheet = estimate(of, DATASHEET, variant=variant, width=cores(of, variant))
        rows.append(Row(name, variant, _sizes(of), *said, *both, sheet.latency_s))
    known = []
    for (variant, of, seconds, spread), both in zip(points, times[len(jobs) :], strict=True):
        low_s, high_s = seconds * (1 - spread), seconds * (1 + spread)
        name = f"{CALIBRATED} {of.kind}"
        known.append(Row(name, variant, _sizes(of), "measured", seconds, low_s, high_s, *both))
    return rows, known


CALIBRATED = "calibrated:"


def _sizes(of: Kernel) -> str:
    return ", ".join(f"{k} {v}" for k, v in of.dims.items())


def _percent(values: list[float], share: float) -> str:
    return f"{100 * float(np.quantile(values, share)):.1f} %"


def _line(name: str, variant: str, rows: list[Row]) -> list[str]:
    errors, repeats = [r.error for r in rows], [r.repeat for r in rows]
    held = sum(r.held for r in rows)
    sheet = [abs(r.datasheet_s / r.seconds - 1) for r in rows if r.datasheet_s]
    return [
        name, variant, str(len(rows)), _percent(errors, 0.5), _percent(errors, 0.9),
        _percent(repeats, 0.5), _percent(repeats, 0.9), f"{held} of {len(rows)}",
        _percent(sheet, 0.5) if sheet else "-",
    ]  # fmt: skip


def bars(rows: list[Row]) -> list[Bar]:
    errors, repeats = [r.error for r in rows], [r.repeat for r in rows]
    found = []
    for what, share, most in (("median", 0.5, MEDIAN), ("90th percentile", 0.9, NINTH)):
        error, repeat = float(np.quantile(errors, share)), float(np.quantile(repeats, share))
        found.append(
            Bar(
                f"host kernels: {what} of the absolute error, {len(rows)} unseen",
                f"{100 * error:.1f} % (repeat {100 * repeat:.1f} %)",
                f"at most {100 * most:.0f} %, or {REPEATS} × the repeat error",
                error <= max(most, REPEATS * repeat),
            )
        )
    held = sum(r.held for r in rows) / len(rows)
    asked = f"{100 * BAND[0]:.0f} to {100 * BAND[1]:.0f} %"
    met = BAND[0] <= held <= BAND[1]
    found.append(Bar("host kernels: the 90 % band holds", f"{100 * held:.1f} %", asked, met))
    return found


def run(quick: bool, data: Path | None) -> Part:
    before = os.getloadavg()[0]
    known = calibrate(force=not quick)
    count = QUICK_COUNT if quick else COUNT
    more, wait_s = (QUICK_AGAIN, QUICK_WAIT_S) if quick else (AGAIN, WAIT_S)
    rows, again = rows_of(count, more, SEED, wait_s)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.family, row.variant), []).append(row)
    table = [_line(name, variant, groups[name, variant]) for name, variant in sorted(groups)]
    for variant in sorted({r.variant for r in rows}):
        table.append(_line("all", variant, [r for r in rows if r.variant == variant]))
    table.append(_line("all", "all", rows))
    table.append(_line("calibrated, again", "all", again))
    worst = sorted(rows, key=lambda r: r.error, reverse=True)[:10]
    values = {
        "seed": SEED, "calibrated": known.created, "calibration_contention": known.contention,
        "load_before": before, "load_after": os.getloadavg()[0],
        "median_signed": median(r.predicted_s / r.seconds - 1 for r in rows),
        "again_signed": median(r.predicted_s / r.seconds - 1 for r in again),
        "kernels": [vars(r) for r in rows], "again": [vars(r) for r in again],
    }  # fmt: skip
    print(
        f"calibrated {known.created} in {known.wall_s:.0f} s, contention {known.contention:.2f}; "
        f"load {before:.1f} before, {values['load_after']:.1f} after; seed {SEED}; not drawn: "
        f"firings above {MOST_FLOPS:.0e} flop or {MOST_STEPS} gradient steps, rings above "
        f"{MOST_BYTES >> 20} MiB"
    )
    print(
        f"{len(again)} points of the calibration timed again: in the median "
        f"{median(r.seconds / r.predicted_s for r in again):.3f} times as long as in it"
    )
    for r in worst:
        print(
            f"far off: {r.family} {r.variant} ({r.sizes}): {r.predicted_s:.3g} s predicted, "
            f"{r.seconds:.3g} and {r.again_s:.3g} s measured"
        )
    columns = ["kernel", "variant", "n", "error median", "90 %", "repeat median", "90 %", "in band"]
    columns.append("datasheet median")
    left_out = [f"{COUNT - count} of {COUNT} kernels"] if quick else []
    return Part("host kernels", columns, table, bars(rows), left_out, values)
