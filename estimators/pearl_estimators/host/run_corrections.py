"""Corrections from finished runs: how much longer calls take in a run than estimated.

A calibration times calls alone, in a loop. In a run, caches, predictors and other load differ. So
every run stores ln(measured / estimated) of its iteration. Similar kernels have similar errors:
ln(factor) of a kernel is a Gaussian process of three parts of equal variance, one of the host, one
of the kernel's family and variant, and one of its sizes, whose correlation falls with their
distance. An iteration is the mean of its kernels, weighted by their shares of the time, also within
fused calls, so that fused and separate calls agree. A run moves each kernel as much as the kernel
can explain (Rasmussen and Williams 2006, chapter 2, for linear observations). The factors are the
expectation given the runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pearl_estimators.estimates import Estimate
from pearl_estimators.host.linear_fit import BAND_FLOOR

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]
    Names = npt.NDArray[np.str_]

SPREAD = 0.15
"""Standard deviation of ln(factor) before any run: runs of the nine shipped specs took 0.99 to 1.20
times the CPU time of their estimates (2 × AMD EPYC, virtual, loaded, 2026-11-23)."""
SHEET_SPREAD = 0.48
"""The same for datasheet estimates: nine in ten are within a factor of 2.2 (`NATIVE_BAND` of
`cpu_datasheet`)."""
NOISE = 0.02
"""Standard deviation of one run's value (assumed). Runs without their cores have no value."""
REACH = 4.0
"""Distance in log2 of flops and bytes at which the correlation of the sizes' part is 1/e:
assumed."""
NEWS = 0.02
"""Smaller changes of factors are not stored, so that valid plans stay valid."""
MEMORY = 4.0
"""Maximum weight of earlier runs in a mean, so that the mean follows a host that changes
(assumed)."""
KEPT = 100
"""Number of iterations that are stored: the latest ones."""
Z90 = 1.6449
"""Half of a 90 % band in standard deviations."""


@dataclass(frozen=True)
class KernelShare:
    """A kernel of an iteration or of a call.

    named: family and variant. share: of the estimated time, 0 to 1.
    flops, bytes: counted work of a firing.
    """

    named: str
    flops: float
    bytes: float
    share: float = 1.0


@dataclass(frozen=True)
class IterationStats:
    """Times of the runs of one iteration.

    parts: the kernels of the iteration, each with its share of the time.
    off: ln(measured / estimated without corrections), the mean of the runs.
    runs: number of runs, at most MEMORY.
    timed: whether all estimates rested on timings. Runs with datasheet estimates correct only such
        estimates.

    Raises:
        ValueError: a number is not finite, or the shares do not sum to 1.
    """

    parts: tuple[KernelShare, ...]
    off: float
    runs: float = 1.0
    timed: bool = True

    def __post_init__(self) -> None:
        total = sum(p.share for p in self.parts)
        numbers = [self.off, self.runs, *(n for p in self.parts for n in (p.flops, p.bytes))]
        if not all(map(math.isfinite, numbers)) or not abs(total - 1) < 1e-6 or self.runs < 1:
            raise ValueError(
                f"learned from runs: off {self.off}, runs {self.runs}, shares that make {total}; "
                "they must be finite numbers, at least one run and shares that make 1"
            )

    @property
    def key(self) -> tuple[Any, ...]:
        """Identity of an iteration: its kernels, and whether they were timed."""
        return self.timed, *((p.named, p.flops, p.bytes) for p in self.parts)


def merge_runs(known: IterationStats | None, new: IterationStats) -> IterationStats:
    """Merge the stored times of an iteration with those of a new run."""
    if known is None:
        return new
    runs = min(known.runs + 1, MEMORY)
    return replace(known, off=known.off + (new.off - known.off) / runs, runs=runs)


def add_run(seen: Sequence[IterationStats], new: IterationStats) -> tuple[IterationStats, ...]:
    """Return `seen` with a run; unchanged if its iteration is known and no factor of its calls
    changes by NEWS. A first run that was as predicted is added too: it confirms the factors of its
        calls."""
    before = {s.key: s for s in seen}
    known = before.pop(new.key, None)
    after = (*before.values(), merge_runs(known, new))[-KEPT:]
    if known is None:
        return after
    now, then = (predict_factor(runs, new.parts, timed=new.timed)[0] for runs in (after, seen))
    moved = abs(now - then)
    return after if moved >= NEWS else tuple(seen)


def predict_factor(
    seen: Sequence[IterationStats], parts: Sequence[KernelShare], *, timed: bool = True
) -> tuple[float, float]:
    """Return expectation and standard deviation of ln(factor) of a call with these parts, given the
    runs.

    timed: whether the estimate of the call rests on timings; only runs of the same sort count.
    """
    import numpy as np

    alike = tuple(s for s in seen if s.timed == timed)
    spread = SPREAD if timed else SHEET_SPREAD
    rows, names, shares = _columns(parts)
    own = float(shares @ _covariance(rows, names, rows, names) @ shares)
    if not alike:
        return 0.0, spread * math.sqrt(own)
    model = _model(alike, spread)
    across = model.weighted @ _covariance(model.rows, model.names, rows, names) @ shares
    variance = own - float(across @ np.linalg.solve(model.covariance, across))
    return float(across @ model.answer), spread * math.sqrt(max(variance, 0.0))


def apply_correction(
    estimate: Estimate,
    seen: Sequence[IterationStats],
    parts: Sequence[KernelShare],
    *,
    timed: bool = True,
) -> Estimate:
    """Return an estimate times its factor. Its band narrows, down to BAND_FLOOR, if runs leave less
    uncertainty. timed: as in `predict_factor`."""
    mean, spread = predict_factor(seen, parts, timed=timed)
    by, half = math.exp(mean), math.exp(max(BAND_FLOOR, Z90 * spread))
    latency_s = by * estimate.latency_s
    return replace(
        estimate,
        latency_s=latency_s,
        occupancy_s=by * estimate.occupancy_s,
        low_s=max(by * estimate.low_s, latency_s / half),
        high_s=min(by * estimate.high_s, latency_s * half),
        source=f"{estimate.source}; times {by:.3g}, as runs on this host took",
    )


@dataclass(frozen=True, eq=False)
class _Model:
    """rows, names: log2 of the sizes of every part of the runs, and its family and variant.
    weighted: (runs, parts), the share of a part in the iteration of a run.
    covariance: of the iterations, over the square of the spread.
    answer: inverse covariance times the observed values.
    """

    rows: Vector
    names: Names
    weighted: Vector
    covariance: Vector
    answer: Vector


@lru_cache(maxsize=8)
def _model(seen: tuple[IterationStats, ...], spread: float) -> _Model:
    import numpy as np

    rows, names, shares = _columns([p for s in seen for p in s.parts])
    weighted = np.zeros((len(seen), len(names)))
    place = 0
    for n, s in enumerate(seen):
        here = slice(place, place + len(s.parts))
        weighted[n, here] = shares[here]
        place += len(s.parts)
    noise = [(NOISE / spread) ** 2 / s.runs for s in seen]
    covariance = weighted @ _covariance(rows, names, rows, names) @ weighted.T + np.diag(noise)
    answer = np.linalg.solve(covariance, np.array([s.off for s in seen]))
    return _Model(rows, names, weighted, covariance, answer)


def _columns(parts: Sequence[KernelShare]) -> tuple[Vector, Names, Vector]:
    import numpy as np

    rows = np.log2([(1 + p.flops, 1 + p.bytes) for p in parts])
    return rows, np.array([p.named for p in parts]), np.array([p.share for p in parts])


def _covariance(a: Vector, a_names: Names, b: Vector, b_names: Names) -> Vector:
    """Covariance of ln(factor) of kernels, (a, b), over the square of the spread."""
    import numpy as np

    near = np.exp(-np.abs(a[:, None] - b[None]).sum(axis=2) / REACH)
    found: Vector = 1 / 3 * (1 + (a_names[:, None] == b_names[None]) * (1 + near))
    return found
