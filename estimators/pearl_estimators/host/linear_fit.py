"""The calibrated model: the seconds of a kernel are its features times the cost of each."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pearl_devices import Kernel
from pearl_devices.base import uses_several_cores
from pearl_devices.kernels import KINDS, kind_of, repeats
from pearl_estimators.estimates import Bound
from pearl_estimators.host.features import MEMORY, OVERHEAD, terms
from pearl_estimators.host.timer import HELD

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

BAND_FLOOR = 0.055
"""Least half width of a band: nine in ten of a calibration's own points, timed again minutes later,
are within 5.3 and 5.8 % in two runs of `benchmarks.estimators host` (2 × AMD EPYC, virtual,
2026)."""
RANGE = 2.0  # a prediction further outside the calibrated sizes is an extrapolation
LEAST_POINTS = 4
FOLDS = 10
REWEIGHTED = 4  # rounds of reweighting; more rounds change nothing above 1e-3
SHARED_POINTS = 4.0  # own points that equal the variant's residuals in the band, assumed
INSIDE = 0.9  # share of new kernels that a band must enclose


def family(kernel: Kernel) -> str:
    """Return the name of the kernels that are reported together and share a band: the kind, with
    its program for environments, and with the kind of replay."""
    structure = kind_of(kernel).structure
    if structure == "environment":
        return f"{kernel.kind} {kernel.program}"
    if structure == "gradient" or repeats(kernel):
        return kernel.kind  # batches are drawn before, or are a small part of the whole
    return f"{kernel.kind} prioritised" if kernel.dims.get("prioritised") else kernel.kind


@dataclass(frozen=True)
class Point:
    """One timed kernel.

    family: see `family`.
    variant: variant of the CPU backend.
    terms: feature → count; see `features.terms`.
    flops, bytes: of one firing.
    seconds: of one firing.
    spread: relative spread of the timing.
    share: CPU time over the wall time of all its cores.
    unsteady: slowest over fastest round.
    """

    family: str
    variant: str
    terms: Mapping[str, float]
    flops: float
    bytes: float
    seconds: float
    spread: float = 0.0
    share: float = 1.0
    unsteady: float = 1.0

    def __post_init__(self) -> None:
        for name in ("seconds", "share", "unsteady"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"point of {self.named}: {name} is {value}; it must be finite and above 0"
                )

    @property
    def named(self) -> str:
        """Family and variant in one text, the key of a calibration's doubts and skipped kernels."""
        return f"{self.family} {self.variant}"

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Identity of a point among those of a calibration: everything but the timing."""
        return (self.named, self.flops, self.bytes, *sorted(self.terms.items()))

    @property
    def loaded(self) -> bool:
        """Whether other programs had a part of its cores while it was timed."""
        return self.share < 1 / HELD


def point(kernel: Kernel, variant: str, seconds: float, **timing: float) -> Point:
    """Return the `Point` of a kernel that took `seconds`; timing: the fields after it."""
    moved = kernel.bytes_in + kernel.bytes_out
    counted = terms(kernel, variant)
    return Point(family(kernel), variant, counted, kernel.flops, moved, seconds, **timing)


@dataclass(frozen=True)
class Fit:
    """Seconds = Σ cost · term, of one family and variant.

    family, variant: of its kernels.
    costs: seconds per term. Costs that are not the family's own are equal in all fits of a variant.
    band: half width of the 90 % band of ln(seconds).
    error: median of |predicted / measured - 1| over the family's points, each predicted by a fit
        without it.
    points: their number.
    flops, bytes: the calibrated range.
    """

    family: str
    variant: str
    costs: Mapping[str, float]
    band: float
    error: float
    points: int
    flops: tuple[float, float]
    bytes: tuple[float, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", MappingProxyType(dict(self.costs)))
        where = f"fit of {self.family} {self.variant}"
        numbers = (*self.costs.values(), self.band, self.error, *self.flops, *self.bytes)
        if not all(math.isfinite(n) and n >= 0 for n in numbers) or not any(self.costs.values()):
            raise ValueError(
                f"{where}: numbers are {numbers}; all must be finite and at least 0, "
                "and one cost above 0"
            )


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a firing.

    seconds: of the fit.
    low_s, high_s: ends of the 90 % band, in seconds.
    bound_by: compute, memory or overhead.
    extrapolated: whether a size is outside the timed ones.
    """

    seconds: float
    low_s: float
    high_s: float
    bound_by: Bound
    extrapolated: bool


def predict(fit: Fit, at: Point) -> Prediction:
    """Return seconds and 90 % band at the sizes of `at`; outside the calibrated range it
    doubles."""
    parts: dict[Bound, float] = {"overhead": 0.0, "compute": 0.0, "memory": 0.0}
    for name, number in at.terms.items():
        word = name.partition(" ")[0]
        bound: Bound = "compute"
        if word in OVERHEAD:
            bound = "overhead"
        elif word.partition("_")[0] in MEMORY:
            bound = "memory"
        parts[bound] += fit.costs.get(name, 0.0) * number
    seconds = sum(parts.values())
    outside = any(
        not low / RANGE <= value <= high * RANGE
        for value, (low, high) in ((at.flops, fit.flops), (at.bytes, fit.bytes))
    )
    half = fit.band * (2 if outside else 1)
    longest = max(parts, key=lambda name: parts[name])
    return Prediction(
        seconds, seconds * math.exp(-half), seconds * math.exp(half), longest, outside
    )


def fit_variant(points: Sequence[Point]) -> list[Fit]:
    """Fit every family of one variant together: least squares of ln(predicted / measured), no cost
    below 0.

    Terms of the same name cost the same in all families.

    The band of a family comes from its residuals and, with the weight of SHARED_POINTS points, from
    those of the variant. The residual of a point is that of a fit without its tenth of the points.
    The band is their root mean square times the quantile that encloses INSIDE of all residuals. It
    is at least BAND_FLOOR and the median spread of the timings.

    Raises:
        ValueError: a family has fewer than LEAST_POINTS points.
    """
    import numpy as np

    groups: dict[str, list[int]] = {}
    for place, p in enumerate(points):
        groups.setdefault(p.family, []).append(place)
    for name, members in groups.items():
        where = f"fit of {name} {points[0].variant}"
        if len(members) < LEAST_POINTS:
            raise ValueError(f"{where}: {len(members)} points; it needs at least {LEAST_POINTS}")
    names = sorted({name for p in points for name in p.terms})
    table = np.array([[p.terms.get(name, 0.0) for name in names] for p in points])
    seconds = np.array([p.seconds for p in points])
    costs = dict(zip(names, _solve(table, seconds).tolist(), strict=True))
    residuals = _cross_validate(table, seconds, [p.family for p in points])
    squares = residuals**2
    pool = SHARED_POINTS * float(np.mean(squares))
    total = {name: float(np.sum(squares[rows])) + pool for name, rows in groups.items()}
    # The error of each point over that of the other points of its family.
    others = np.array([total[p.family] for p in points]) - squares
    count = np.array([len(groups[p.family]) for p in points]) - 1 + SHARED_POINTS
    scaled = np.abs(residuals) / np.sqrt(np.maximum(others / count, 1e-24))
    quantile = float(np.quantile(scaled, INSIDE))
    found = []
    for name, rows in groups.items():
        mine = [points[i] for i in rows]
        flops, moved = [p.flops for p in mine], [p.bytes for p in mine]
        spread = float(np.median([p.spread for p in mine]))
        size = math.sqrt(total[name] / (len(rows) + SHARED_POINTS))
        found.append(
            Fit(
                name,
                points[0].variant,
                {n: costs[n] for n in names if any(n in p.terms for p in mine)},
                band=max(BAND_FLOOR, quantile * size, spread),
                error=float(np.median(np.abs(np.expm1(residuals[rows])))),
                points=len(rows),
                flops=(min(flops), max(flops)),
                bytes=(min(moved), max(moved)),
            )
        )
    return found


ONE_CORE = tuple(k.name for k in KINDS.values() if k.structure in ("sample", "prioritise"))
"""Kinds that calls on two cores also contain, on one of the cores."""


def fit_variants(points: Sequence[Point]) -> list[Fit]:
    """Fit all variants, each on its own points.

    A call on two cores contains the replay of the one-core variant, whose points determine the cost
    of that part. Families with fewer than LEAST_POINTS points get no fit. A two-core call that was
    timed without both cores counts as not timed.
    """
    counts: dict[str, int] = {}
    usable = [p for p in points if not (p.loaded and uses_several_cores(p.variant))]
    for p in usable:
        counts[p.named] = counts.get(p.named, 0) + 1
    usable = [p for p in usable if counts[p.named] >= LEAST_POINTS]
    found: list[Fit] = []
    for variant in dict.fromkeys(p.variant for p in usable):
        own = [p for p in usable if p.variant == variant]
        single = variant.removesuffix("-pair")
        lent = [
            replace(p, variant=variant)
            for p in usable
            if single != variant and p.variant == single and p.family.startswith(ONE_CORE)
        ]
        families = {p.family for p in own}
        found += [each for each in fit_variant([*own, *lent]) if each.family in families]
    return found


def _cross_validate(table: Vector, seconds: Vector, families: Sequence[str]) -> Vector:
    """ln(predicted / measured) of every point, by a fit to the nine tenths without it. Each tenth
    has points of every family, as far as there are enough."""
    import numpy as np

    order = sorted(range(len(seconds)), key=lambda i: families[i])
    tenth = np.empty(len(seconds), int)
    tenth[order] = np.arange(len(seconds)) % FOLDS
    residuals = np.empty(len(seconds))
    for fold in range(min(FOLDS, len(seconds))):
        out = tenth == fold
        costs = _solve(table[~out], seconds[~out])
        model = np.maximum(table[out] @ costs, 1e-3 * seconds[out])
        residuals[out] = np.log(model / seconds[out])
    return residuals


def _solve(table: Vector, seconds: Vector) -> Vector:
    """Costs of at least 0 that make ln(model / seconds) small: non-negative linear least squares,
    reweighted so that relative errors approach log errors."""
    import numpy as np
    from scipy.optimize import nnls

    scale = table.max(axis=0)
    scale[scale == 0] = 1.0
    normal = table / scale
    best, least = np.zeros(table.shape[1]), math.inf
    weight = 1 / seconds
    for _ in range(REWEIGHTED):
        most = 100 * table.shape[1]  # the default 3 per column was too low once in 1e4 fits
        costs = nnls(normal * weight[:, None], seconds * weight, maxiter=most)[0]
        model = np.maximum(normal @ costs, 1e-3 * seconds)
        error = float(np.sum(np.log(model / seconds) ** 2))
        if error < least:
            best, least = costs, error
        weight = 1 / np.sqrt(model * seconds)
    result: Vector = best / scale
    return result
