"""The datasheet rung of CPUs against this host, taken as unknown.

The kernels are the points of this host's calibration, which is made where there is none. Beside the
shipped costs (`pearl_estimators.cpu_datasheet`, of another day of such a host) stand costs fitted
here without the family that is predicted, family after family: what a kind of kernel that no fit
has seen may be off by. `--json` keeps the fitted costs, from which the shipped ones were taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks.bars import Bar, Part
from pearl_devices import Kernel, discover
from pearl_devices.base import uses_several_cores
from pearl_estimators.cpu_datasheet import NATIVE, TORCH, counts, cpu_datasheet, has_counts
from pearl_estimators.host.benchmark_kernels import (
    draw_fit_kernels,
    offered_variants,
    threaded_kernels,
)
from pearl_estimators.host.features import terms
from pearl_estimators.host.linear_fit import family
from pearl_estimators.host.measuring import calibrate
from pearl_estimators.host.probe import load_probe, probe

MEDIAN, HELD = 0.30, (0.85, 0.95)
ROUNDS, FAR = 8, 0.3  # of reweighting, and the logarithm of an error that counts in full: assumed

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """A kernel, its variant, and what the calibration timed, seconds."""

    kernel: Kernel
    variant: str
    seconds: float


def timed() -> list[Timed]:
    """The points of this host's calibration, each with its kernel; without calls on two cores that
    had not both."""
    points = [p for p in calibrate().points if not (p.loaded and uses_several_cores(p.variant))]
    known = {(p.family, p.variant, _key(p.terms)): p.seconds for p in points}
    found = []
    every = ((k, v) for k in draw_fit_kernels() for v in offered_variants(k))
    for kernel, variant in chain(every, threaded_kernels()):
        seconds = known.get((family(kernel), variant, _key(terms(kernel, variant))))
        if seconds is not None and has_counts(kernel):
            found.append(Timed(kernel, variant, seconds))
    return found


def _key(of: Any) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((name, round(number, 3)) for name, number in of.items()))


def fitted(table: Vector, seconds: Vector) -> Vector:
    """Costs of at least 0: least squares of relative errors, far ones counting less."""
    weights = 1 / seconds
    for _ in range(ROUNDS):
        costs, _ = nnls(table * weights[:, None], seconds * weights, maxiter=20_000)
        off = np.abs(np.log(np.maximum(table @ costs / seconds, 1e-3)))
        weights = 1 / seconds / np.sqrt(np.maximum(1, off / FAR))
    return np.asarray(costs)


def run(quick: bool, data: Path | None) -> Part:
    """The table, with its bars. quick, data: change nothing."""
    del quick, data
    here = discover.cpu()
    host = replace(here, real=False)
    load_probe() or probe()
    rows, bars, values = [], [], {}
    for variant, shipped in (("native", NATIVE), ("torch", TORCH)):
        points = [t for t in timed() if t.variant == variant]
        seconds = np.array([t.seconds for t in points])
        names = [n for n in shipped if n != "step_on_two"]
        numbers = [counts(t.kernel, host, variant) for t in points]
        table = np.array([[c.get(n, 0.0) for n in names] for c in numbers])
        families = np.array([family(t.kernel).split(" ")[0] for t in points])
        said = [cpu_datasheet(t.kernel, host, variant, 1) for t in points]
        left = np.zeros(len(points))
        for each in set(families):
            others = families != each
            left[~others] = table[~others] @ fitted(table[others], seconds[others])
        probed = [cpu_datasheet(t.kernel, here, variant, 1) for t in points]
        band = said[0].latency_s / said[0].low_s, said[0].high_s / said[0].latency_s
        for what, predicted in (
            ("the shipped costs", np.array([e.latency_s for e in said])),
            ("the shipped costs, by the probe", np.array([e.latency_s for e in probed])),
            ("fitted here without its family", left),
        ):
            ratio = np.maximum(predicted, 1e-12) / seconds
            error = float(np.median(np.abs(ratio - 1)))
            held = float(np.mean((ratio <= band[0]) & (ratio >= 1 / band[1])))
            if variant == "native" and "probe" in what:
                continue  # scales kernels of torch only
            rows.append([variant, what, str(len(points)), f"{error:.1%}", f"{held:.0%}"])
        bars += [
            Bar(
                f"{variant}: median error, family left out",
                f"{error:.1%}",
                f"≤ {MEDIAN:.0%}",
                error <= MEDIAN,
            ),
            Bar(
                f"{variant}: in the 90 % band, family left out",
                f"{held:.0%}",
                f"{HELD[0]:.0%} to {HELD[1]:.0%}",
                HELD[0] <= held <= HELD[1],
            ),
        ]
        values[variant] = dict(zip(names, fitted(table, seconds).tolist(), strict=True))
    if two := [t for t in timed() if t.variant == "torch-2"]:
        said = [cpu_datasheet(t.kernel, host, t.variant, 2) for t in two]
        ratios = [e.latency_s / t.seconds for e, t in zip(said, two, strict=True)]
        held = fmean(e.low_s <= t.seconds <= e.high_s for e, t in zip(said, two, strict=True))
        error = median(abs(r - 1) for r in ratios)
        rows.append(["torch-2", "the shipped costs", str(len(two)), f"{error:.1%}", f"{held:.0%}"])
    columns = ["variant", "costs", "n", "error, median", "in the 90 % band"]
    return Part("CPU from a data sheet", columns, rows, bars, values=values)
