"""The calibrated model: cost of a call, of its operations and accesses, and a fitted roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from pearl_devices import Kernel
from pearl_devices.work import product_rounds, products
from pearl_estimators.estimate import Bound
from pearl_estimators.roofline import accesses, launches

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

Form = Literal["max", "sum"]
Costs = tuple[float, float, float, float, float, float]
"""Seconds of a call, an operation, an output, a serial step, a flop and a byte."""

BAND_FLOOR = 0.05  # no band is narrower: what one machine repeats from day to day, assumed
RANGE = 2.0  # beyond this factor outside the calibrated sizes a prediction is an extrapolation
LEAST_POINTS = 4
INTERIOR_FROM = 6
FLOPS, BYTES = 4, 5  # places in `Costs`
REWEIGHTED = 3  # rounds of reweighting; more change nothing below 1e-3


def family(kernel: Kernel) -> str:
    """What shares one fit: the kind, with its program for environments, and the kind of replay.

    A policy for one environment multiplies a matrix by a vector, which is another routine.
    """
    if kernel.kind == "env_step":
        return f"env_step {kernel.program}"
    if kernel.kind.startswith("inference.") and kernel.dim("envs") == 1:
        return f"{kernel.kind} one environment"
    if kernel.kind.startswith("update."):
        return kernel.kind  # its batches are drawn already
    return f"{kernel.kind} prioritised" if kernel.dims.get("prioritised") else kernel.kind


@dataclass(frozen=True)
class Point:
    """One kernel, as the model sees it, and the seconds one firing took.

    operations: what one firing starts inside the call: matrix products, or eager torch operations.
    outputs: numbers that the matrix products write; products with a short inner size cost by them.
    serial: what is done one after another: accesses to replay, samples of a loss, choices of an
    action. spread: of the timing, relative.
    """

    family: str
    variant: str
    operations: float
    outputs: float
    serial: float
    flops: float
    bytes: float
    seconds: float
    spread: float = 0.0

    @property
    def terms(self) -> Costs:
        return 1.0, self.operations, self.outputs, self.serial, self.flops, self.bytes


def point(kernel: Kernel, variant: str, seconds: float, spread: float = 0.0) -> Point:
    """The `Point` of a kernel that took `seconds`."""
    rounds, done = product_rounds(kernel), products(kernel)
    return Point(
        family(kernel),
        variant,
        float(launches(kernel, variant) if variant == "torch" else len(done) * rounds),
        float(sum(m * n for m, _, n in done) * rounds),
        _serial(kernel),
        kernel.flops,
        kernel.bytes_in + kernel.bytes_out,
        seconds,
        spread,
    )


def _serial(kernel: Kernel) -> float:
    rows = 0
    if kernel.kind.startswith("inference."):
        rows = kernel.dim("envs") * (kernel.dim("act") or 1)
    elif kernel.kind.startswith(("update.", "learn.")):
        rows = kernel.dim("batch") * kernel.dim("steps")
    elif kernel.kind == "rollout_insert":
        rows = kernel.dim("envs")
    elif kernel.kind == "gae":
        rows = kernel.dim("envs") * kernel.dim("horizon")
    return accesses(kernel) + rows


@dataclass(frozen=True)
class Fit:
    """Seconds = what call, operations, outputs and serial steps cost, plus a roofline.

    costs: seconds of one each. The roofline is the larger (`max`) or the sum of what flops and
    bytes cost. band: half width of the 90 % band of ln(seconds). error: median of
    |predicted / measured - 1| over the points, each left out once. points: how many.
    flops, bytes: the range calibrated.
    """

    family: str
    variant: str
    form: Form
    costs: Costs
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
        if len(self.costs) != 6:
            raise ValueError(f"{where}: {len(self.costs)} costs; there must be 6")
        if not all(math.isfinite(n) and n >= 0 for n in numbers) or not any(self.costs):
            raise ValueError(
                f"{where}: numbers are {numbers}; all must be finite and at least 0, "
                "and one cost above 0"
            )


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
    call, operations, outputs, serial, flops, moved = parts
    overhead, compute, memory = call + operations, outputs + flops, serial + moved
    seconds = call + operations + outputs + serial
    seconds += max(flops, moved) if fit.form == "max" else flops + moved
    outside = any(
        not low / RANGE <= value <= high * RANGE
        for value, (low, high) in ((at.flops, fit.flops), (at.bytes, fit.bytes))
    )
    half = fit.band * (2 if outside else 1)
    bound: Bound = "overhead"
    if max(compute, memory) > overhead:
        bound = "compute" if compute >= memory else "memory"
    return Prediction(seconds, seconds * math.exp(-half), seconds * math.exp(half), bound, outside)


# Candidate models, simplest first: which terms may cost something. The first is the design's: call
# and roofline. Operations, outputs and serial steps join where the points left out say they help.
_MODELS: tuple[tuple[Form, tuple[bool, ...]], ...] = tuple(
    (form, (True, operations, outputs, serial, True, True))
    for operations, outputs, serial in sorted(product((False, True), repeat=3), key=sum)
    for form in ("max", "sum")
)


def fit(points: Sequence[Point]) -> Fit:
    """Fit one family and variant: least squares of ln(predicted / measured), no cost below 0.

    Of the candidate models the one with the least error on points left out is taken; a larger one
    only if it is at least a tenth better. The band comes from the same residuals: their root mean
    square times Student's 95 % quantile, at least BAND_FLOOR and the median spread of the timings.
    Where six points or more are given, the smallest and the largest are not among those left out:
    to predict them would be an extrapolation, whose band is doubled when it is asked for.
    Fewer than four points, or seconds that are not above 0, are a ValueError.
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
    found: list[tuple[float, Form, npt.NDArray[np.bool_], Vector]] = []
    for form, allowed in _MODELS:
        used = np.array(allowed) & (terms != 0).any(axis=0)
        if used.sum() < len(points):
            left_out = _left_out(terms, seconds, form, used)
            score = float(np.sqrt(np.mean(left_out**2)))
            if not found or score < 0.9 * found[-1][0]:
                found.append((score, form, used, left_out))
    score, form, used, left_out = found[-1]
    costs = _solve(terms, seconds, form, used)
    freedom = max(len(points) - int((costs > 0).sum()), 2)
    spread = float(np.median([p.spread for p in points]))
    return Fit(
        points[0].family,
        points[0].variant,
        form,
        costs=tuple(costs.tolist()),
        band=max(BAND_FLOOR, score * float(stdtrit(freedom, 0.95)), spread),
        error=float(np.median(np.abs(np.expm1(left_out)))),
        points=len(points),
        flops=(float(terms[:, FLOPS].min()), float(terms[:, FLOPS].max())),
        bytes=(float(terms[:, BYTES].min()), float(terms[:, BYTES].max())),
    )


def _left_out(terms: Vector, seconds: Vector, form: Form, used: npt.NDArray[np.bool_]) -> Vector:
    """ln(predicted / measured) of every point by a fit to the others."""
    import numpy as np

    chosen = np.arange(len(seconds))
    if len(seconds) >= INTERIOR_FROM:
        chosen = np.argsort(seconds)[1:-1]
    residuals = np.empty(len(chosen))
    for place, i in enumerate(chosen):
        others = np.arange(len(seconds)) != i
        costs = _solve(terms[others], seconds[others], form, used)
        model = float(_model(terms[i : i + 1], costs, form)[0])
        residuals[place] = math.log(max(model, 1e-3 * seconds[i]) / seconds[i])
    return residuals


def _model(terms: Vector, costs: Vector, form: Form) -> Vector:

    parts = terms * costs
    roof = parts[:, FLOPS:].max(axis=1) if form == "max" else parts[:, FLOPS:].sum(axis=1)
    total: Vector = parts[:, :FLOPS].sum(axis=1) + roof
    return total


def _solve(terms: Vector, seconds: Vector, form: Form, used: npt.NDArray[np.bool_]) -> Vector:
    """Costs at least 0 that make ln(model / seconds) small.

    Non-negative linear least squares, reweighted so that relative errors become log errors. In the
    `max` form flops bound the points above some ratio of flops to bytes: every such split is tried.
    """
    import numpy as np
    from scipy.optimize import nnls

    scale = np.where(used, terms.max(axis=0), 1.0)
    scale[scale == 0] = 1.0
    normal = np.where(used, terms / scale, 0.0)
    columns = np.flatnonzero(used)
    best, least = np.zeros(terms.shape[1]), math.inf
    for counted in _splits(normal) if form == "max" else [normal]:
        weight = 1 / seconds
        for _ in range(REWEIGHTED):
            costs = np.zeros(terms.shape[1])
            most = 100 * columns.size  # its own limit, 3 a column, was too few for one fit in 1e4
            scaled = counted[:, columns] * weight[:, None]
            costs[columns] = nnls(scaled, seconds * weight, maxiter=most)[0]
            model = np.maximum(_model(normal, costs, form), 1e-3 * seconds)
            error = float(np.sum(np.log(model / seconds) ** 2))
            if error < least:
                best, least = costs, error
            weight = 1 / np.sqrt(model * seconds)
    result: Vector = best / scale
    return result


def _splits(normal: Vector) -> list[Vector]:
    """The terms with either flops or bytes of each point removed, for each order of their ratio."""
    import numpy as np

    flops, moved = normal[:, FLOPS], normal[:, BYTES]
    ratio = np.divide(flops, moved, out=np.full(len(flops), np.inf), where=moved > 0)
    found = []
    for least in (*np.unique(ratio), np.inf):
        counted = normal.copy()
        by_flops = ratio >= least if math.isfinite(least) else np.zeros(len(ratio), bool)
        counted[by_flops, BYTES] = 0.0
        counted[~by_flops, FLOPS] = 0.0
        found.append(counted)
    return found
