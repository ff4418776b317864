"""The calibrated model: cost of a call, of its operations and accesses, and a fitted roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pearl_devices import Kernel
from pearl_devices.work import products
from pearl_estimators.estimate import Bound
from pearl_estimators.roofline import accesses, launches

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

Form = Literal["max", "sum"]

BAND_FLOOR = 0.05  # no band is narrower: what one machine repeats from day to day, assumed
RANGE = 2.0  # beyond this factor outside the calibrated sizes a prediction is an extrapolation
LEAST_POINTS = 3


def family(kernel: Kernel) -> str:
    """What shares one fit: the kind, with its program for environments, and the kind of replay."""
    if kernel.kind == "env_step":
        return f"env_step {kernel.program}"
    return f"{kernel.kind} prioritised" if kernel.dims.get("prioritised") else kernel.kind


@dataclass(frozen=True)
class Point:
    """One kernel, as the model sees it, and the seconds one firing took.

    operations: what one firing starts inside the call: matrix products, or eager torch operations.
    accesses: dependent or random accesses to replay. spread: of the timing, relative.
    """

    family: str
    variant: str
    operations: float
    accesses: float
    flops: float
    bytes: float
    seconds: float
    spread: float = 0.0

    @property
    def terms(self) -> tuple[float, float, float, float, float]:
        return 1.0, self.operations, self.accesses, self.flops, self.bytes


def point(kernel: Kernel, variant: str, seconds: float, spread: float = 0.0) -> Point:
    """The `Point` of a kernel that took `seconds`."""
    if variant == "torch":
        operations = float(launches(kernel, variant))
    else:
        steps = kernel.dims.get("steps", 1)
        operations = float(len(products(kernel)) * (steps if isinstance(steps, int) else 1))
    return Point(
        family(kernel),
        variant,
        operations,
        accesses(kernel),
        kernel.flops,
        kernel.bytes_in + kernel.bytes_out,
        seconds,
        spread,
    )


@dataclass(frozen=True)
class Fit:
    """Seconds = call_s + operations · operation_s + accesses · access_s + roofline.

    The roofline is the larger (`max`) or the sum of flops · flop_s and bytes · byte_s. band: half
    width of the 90 % band of ln(seconds). flops, bytes: the range calibrated. points: how many.
    error: median of |predicted / measured - 1| over the points, each left out once.
    """

    family: str
    variant: str
    form: Form
    call_s: float
    operation_s: float
    access_s: float
    flop_s: float
    byte_s: float
    band: float
    error: float
    points: int
    flops: tuple[float, float]
    bytes: tuple[float, float]

    def __post_init__(self) -> None:
        where = f"fit of {self.family} {self.variant}"
        numbers = (*self.costs, self.band, self.error, *self.flops, *self.bytes)
        if self.form not in ("max", "sum"):
            raise ValueError(f"{where}: form is {self.form!r}; it must be max or sum")
        if not all(math.isfinite(n) and n >= 0 for n in numbers) or not any(self.costs):
            raise ValueError(
                f"{where}: numbers are {numbers}; all must be finite and at least 0, some cost above 0"
            )

    @property
    def costs(self) -> tuple[float, float, float, float, float]:
        return self.call_s, self.operation_s, self.access_s, self.flop_s, self.byte_s


@dataclass(frozen=True)
class Prediction:
    seconds: float
    low_s: float
    high_s: float
    bound_by: Bound
    extrapolated: bool


def predict(fit: Fit, at: Point) -> Prediction:
    """Seconds and 90 % band at the sizes of `at`; outside the calibrated range the band doubles."""
    parts = [cost * term for cost, term in zip(fit.costs, at.terms, strict=True)]
    overhead, memory, compute = parts[0] + parts[1], parts[2] + parts[4], parts[3]
    seconds = parts[0] + parts[1] + parts[2]
    seconds += max(parts[3], parts[4]) if fit.form == "max" else parts[3] + parts[4]
    outside = any(
        not low / RANGE <= value <= high * RANGE
        for value, (low, high) in ((at.flops, fit.flops), (at.bytes, fit.bytes))
    )
    half = fit.band * (2 if outside else 1)
    bound: Bound = "overhead"
    if max(compute, memory) > overhead:
        bound = "compute" if compute >= memory else "memory"
    return Prediction(
        seconds, seconds * math.exp(-half), seconds * math.exp(half), bound, outside
    )


# Candidate models: which of call, operations, accesses, flops, bytes may cost something. The design's
# model is the first; operations and accesses join where the points left out say that they help.
_MODELS: tuple[tuple[Form, tuple[bool, ...]], ...] = tuple(
    (form, (True, operations, waits, True, True))
    for operations in (False, True)
    for waits in (False, True)
    for form in ("max", "sum")
)


def fit(points: Sequence[Point]) -> Fit:
    """Fit one family and variant: least squares of ln(predicted / measured), no cost below 0.

    Of the candidate models the one with the least error on points left out is taken; a larger one
    only if it is at least a tenth better. The band comes from the same residuals: their root mean
    square times Student's 95 % quantile, at least BAND_FLOOR and the median spread of the timings.
    Fewer than three points, or seconds that are not above 0, are a ValueError.
    """
    import numpy as np
    from scipy.special import stdtrit

    name = f"fit of {points[0].family} {points[0].variant}" if points else "fit"
    if len(points) < LEAST_POINTS:
        raise ValueError(f"{name}: {len(points)} points; it needs at least {LEAST_POINTS}")
    seconds = np.array([p.seconds for p in points])
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ValueError(f"{name}: seconds are {seconds.tolist()}; all must be finite and above 0")
    terms = np.array([p.terms for p in points])
    best: tuple[float, Form, npt.NDArray[np.bool_], Vector] | None = None
    for form, allowed in _MODELS:
        used = np.array(allowed) & (terms != 0).any(axis=0)
        if used.sum() >= len(points):
            continue
        left_out = _left_out(terms, seconds, form, used)
        score = float(np.sqrt(np.mean(left_out**2)))
        if best is None or score < 0.9 * best[0]:
            best = score, form, used, left_out
    if best is None:  # three points: call and the larger of flops and bytes alone
        used = np.array([True, False, False, terms[:, 3].any(), not terms[:, 3].any()])
        left_out = _left_out(terms, seconds, "max", used)
        best = float(np.sqrt(np.mean(left_out**2))), "max", used, left_out
    score, form, used, left_out = best
    costs = _solve(terms, seconds, form, used)
    freedom = max(len(points) - int((costs > 0).sum()), 2)
    band = max(
        BAND_FLOOR, score * float(stdtrit(freedom, 0.95)), float(np.median([p.spread for p in points]))
    )
    return Fit(
        points[0].family,
        points[0].variant,
        form,
        *(float(c) for c in costs),
        band=band,
        error=float(np.median(np.abs(np.expm1(left_out)))),
        points=len(points),
        flops=(float(terms[:, 3].min()), float(terms[:, 3].max())),
        bytes=(float(terms[:, 4].min()), float(terms[:, 4].max())),
    )


def _left_out(
    terms: Vector, seconds: Vector, form: Form, used: npt.NDArray[np.bool_]
) -> Vector:
    """ln(predicted / measured) of every point by a fit to the others."""
    import numpy as np

    residuals = np.empty(len(seconds))
    for i in range(len(seconds)):
        others = np.arange(len(seconds)) != i
        costs = _solve(terms[others], seconds[others], form, used)
        model = float(_model(terms[i : i + 1], costs, form)[0])
        residuals[i] = math.log(max(model, 1e-3 * seconds[i]) / seconds[i])
    return residuals


def _model(terms: Vector, costs: Vector, form: Form) -> Vector:
    import numpy as np

    parts = terms * costs
    roof = np.maximum(parts[:, 3], parts[:, 4]) if form == "max" else parts[:, 3] + parts[:, 4]
    total: Vector = parts[:, :3].sum(axis=1) + roof
    return total


def _solve(terms: Vector, seconds: Vector, form: Form, used: npt.NDArray[np.bool_]) -> Vector:
    """Costs at least 0 that make ln(model / seconds) small.

    Non-negative linear least squares, repeated with weights that turn relative into log errors; for
    the `max` form each point counts the term that bounds it, which is settled by repetition too.
    """
    import numpy as np
    from scipy.optimize import nnls

    scale = np.where(used, terms.max(axis=0), 1.0)
    scale[scale == 0] = 1.0
    normal = np.where(used, terms / scale, 0.0)
    costs, weight, counted = np.zeros(terms.shape[1]), 1 / seconds, normal.copy()
    best, least = costs, math.inf
    for _ in range(8):
        columns = np.flatnonzero(used)
        costs = np.zeros(terms.shape[1])
        costs[columns] = nnls(counted[:, columns] * weight[:, None], seconds * weight)[0]
        model = np.maximum(_model(normal, costs, form), 1e-3 * seconds)
        error = float(np.sum(np.log(model / seconds) ** 2))
        if error < least * (1 - 1e-9):
            best, least = costs, error
        elif form == "sum":
            break
        weight = 1 / np.sqrt(model * seconds)
        if form == "max":
            counted = normal.copy()
            flops = costs[3] * normal[:, 3] >= costs[4] * normal[:, 4]
            counted[flops, 4] = 0.0
            counted[~flops, 3] = 0.0
    result: Vector = best / scale
    return result
