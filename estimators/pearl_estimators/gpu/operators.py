"""Time of one GPU operator by its sizes, from about thirty timed sizes.

The model has two parts that a person can check:
- A roofline, overhead + max(flops / rate, bytes / rate). Its three numbers are fitted to the
  logarithms of the timed seconds. If left-out points improve, flops are those of whole waves:
  a GPU of s multiprocessors computes s output tiles at a time, and the last, partly filled
  wave takes as long as a full one.
- A correction by neighbours: sizes near a timed size deviate from the roofline as that size does.
  This is kriging (Gaussian process regression, Rasmussen and Williams 2006, chapter 2) of
  ln(timed / roofline) over log2 of the sizes, with the Matern 3/2 kernel. Maximum likelihood
  gives how far a deviation reaches along each size. The correction is used only if it makes
  the error on left-out points at least a tenth smaller.

The correction also gives the distance of a size from all timed sizes, and so the 90 % band. The
form (roofline, kriging, kernel) was chosen by held-out error on one GPU (Tesla V100, timings
published with NeuSight, ASPLOS 2025). The condition on the correction, and the width of the band,
were chosen after looking at all three GPUs of that set, so a fourth may do worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pearl_estimators.estimates import Bound

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

Operator = Literal["linear", "bmm", "layer_norm", "softmax", "elementwise"]
OPERATORS: tuple[Operator, ...] = ("linear", "bmm", "layer_norm", "softmax", "elementwise")
TERMS = ("overhead_s", "flops_per_s", "bytes_per_s")
F32 = 4

TILES = (0, 64, 128)  # candidate sides of an output tile; 0: no waves
POINTS = 30  # timed sizes per operator
LEAST_POINTS = 8
GAIN = 0.9  # a further term must bring the left-out error below this share of the simpler model
BAND_FLOOR = 0.01  # of ln(seconds): repeatability of one GPU, assumed
ROBUST = 0.1  # larger deviations of ln(seconds) have less weight in the fit
UNSEEN = 30.0  # upper limit of a rate that bounded no timing, over the best seen rate: assumed
TELLS = 0.01  # a roofline term with a smaller share of all times is not identified by them
EXACT = 1e-3  # with a smaller left-out error no further term is tried: assumed
FAR = 1e6  # log2 steps: more than any size has
LEAST_NOISE = 3e-3  # of ln(seconds)
REACH_LOG2 = (math.e, 1.5)  # prior of a reach: a factor e of log2 sizes, spread in ln; assumed


@dataclass(frozen=True)
class Operation:
    """One operator with its sizes, in float32.

    linear, bmm: `batch` products of m × k by k × n; others: m rows of n numbers (k is 1).
    streams: arrays of the output's size that are read or written (0 for products).
    """

    operator: Operator
    batch: int = 1
    m: int = 1
    k: int = 1
    n: int = 1
    streams: int = 0

    def __post_init__(self) -> None:
        what = f"operation {self.operator}"
        if self.operator not in OPERATORS:
            raise ValueError(f"{what}: there is no such operator; there are {list(OPERATORS)}")
        if min(self.batch, self.m, self.k, self.n) < 1:
            raise ValueError(f"{what}: sizes are {self.sizes}; each must be at least 1")
        if self.streams < (0 if self.operator in ("linear", "bmm") else 2):
            raise ValueError(f"{what}: streams is {self.streams}; it reads and writes, at least 2")

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.m, self.k, self.n, self.streams

    @property
    def flops(self) -> float:
        """2·m·k·n of a product; one per element of the others, whose fitted rate scales it."""
        return (2.0 * self.k if not self.streams else 1.0) * self.batch * self.m * self.n

    @property
    def bytes(self) -> float:
        if self.streams:
            return float(F32 * self.streams * self.batch * self.m * self.n)
        return float(F32 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n))

    def wave_flops(self, tile: int, multiprocessors: int) -> float:
        """Flops of whole waves of `multiprocessors` output tiles of side `tile`."""
        if not tile or self.streams:
            return self.flops
        tiles = self.batch * math.ceil(self.m / tile) * math.ceil(self.n / tile)
        rounds = math.ceil(tiles / multiprocessors)
        return 2.0 * self.k * tile * tile * rounds * multiprocessors

    @property
    def place(self) -> tuple[float, ...]:
        """log2 of the sizes: the operation's place among others of its operator."""
        return tuple(math.log2(max(size, 1)) for size in self.sizes)


@dataclass(frozen=True)
class OperatorFit:
    """The model of one operator on one GPU.

    overhead_s, flops_per_s, bytes_per_s: the roofline. tile: side of an output tile whose waves are
    counted, 0 for none. places, weights: the timed sizes (log2) and the contribution of each to
    ln(seconds); empty without a correction. reach: log2 steps along each size over which a
    deviation fades (FAR: it does not depend on that size). signal, noise: standard deviations of
    ln(seconds) that neighbours explain and do not explain. band: half width of the 90 % band of
    ln(seconds) for sizes as near to timed ones as these are to each other; there the standard
    deviation is `spread`, and farther away the band grows with it. error: mean of |predicted /
    timed - 1| over the points, each left out once. low, high: the timed sizes (log2).
    unidentified: names of roofline numbers that the timed sizes do not determine: an overhead below
    1 % of all times, and a rate that bounds none of them by 1 %. If flops and bytes keep one ratio,
    only one rate is determined: that of the bytes.
    """

    operator: Operator
    multiprocessors: int
    overhead_s: float
    flops_per_s: float
    bytes_per_s: float
    tile: int
    places: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    reach: tuple[float, ...]
    signal: float
    noise: float
    band: float
    spread: float
    error: float
    points: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    unidentified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        what = f"fit of {self.operator}"
        roofline = self.overhead_s, self.flops_per_s, self.bytes_per_s
        above = (*roofline, self.noise, self.band, self.spread)
        others = (self.signal, self.error, *self.weights, *self.low, *self.high)
        if not all(math.isfinite(x) and x > 0 for x in above):
            raise ValueError(f"{what}: numbers are {above}; all must be finite and above 0")
        if not all(map(math.isfinite, others)) or any(not r > 0 for r in self.reach):
            raise ValueError(f"{what}: a number is not finite, or a reach not above 0")
        if len(self.places) != len(self.weights):
            raise ValueError(f"{what}: {len(self.places)} places, {len(self.weights)} weights")


@dataclass(frozen=True)
class Guess:
    """Seconds of one operation with their 90 % band; work_s: without the overhead.

    extrapolated: a size lies more than a factor of two outside the timed ones; the band is doubled.
    """

    seconds: float
    low_s: float
    high_s: float
    work_s: float
    bound_by: Bound
    extrapolated: bool


def choose_sizes(operations: Sequence[Operation], count: int = POINTS, first: int = 0) -> list[int]:
    """Return which of `operations` to time: each next one is farthest from all chosen before.

    Only sizes matter, so nothing needs to be timed yet. first: the one to begin with. The distance
    is Euclidean in log2 of the sizes, each scaled to its range.
    """
    import numpy as np

    if not 0 <= first < len(operations) or count > len(operations):
        raise ValueError(
            f"choose_sizes: {count} of {len(operations)} operations, first {first}; too few"
        )
    places = np.array([each.place for each in operations])
    span = np.ptp(places, axis=0)
    places = places[:, span > 0] / span[span > 0]
    taken = [first]
    nearest = np.linalg.norm(places - places[first], axis=1)
    while len(taken) < count:
        nearest[taken] = -1.0
        best = int(np.argmax(nearest))
        taken.append(best)
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return taken


def fit_operator(
    operations: Sequence[Operation], seconds: Sequence[float], multiprocessors: int
) -> OperatorFit:
    """Return the model of one operator from timed sizes.

    Fewer than LEAST_POINTS, several operators, or seconds that are not above 0 are a ValueError.
    """
    import numpy as np

    names = {each.operator for each in operations}
    if len(names) != 1 or len(operations) < LEAST_POINTS or len(operations) != len(seconds):
        raise ValueError(
            f"fit of {sorted(names)}: {len(operations)} sizes, {len(seconds)} times; "
            f"one operator with at least {LEAST_POINTS} of each is needed"
        )
    times = np.array(seconds, float)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError(f"fit of {operations[0].operator}: every time must be finite and above 0")
    best: OperatorFit | None = None
    for tile in TILES if not operations[0].streams else TILES[:1]:
        found = _fit(operations, times, multiprocessors, tile)
        if best is None or (best.error > EXACT and found.error < GAIN * best.error):
            best = found
    assert best is not None
    return best


def _fit(
    operations: Sequence[Operation], seconds: Vector, multiprocessors: int, tile: int
) -> OperatorFit:
    import numpy as np

    flops = np.array([each.wave_flops(tile, multiprocessors) for each in operations])
    moved = np.array([each.bytes for each in operations])
    costs, told = _roofline(flops, moved, seconds)
    deviation = np.log(seconds / _model(costs, flops, moved))
    places = np.array([each.place for each in operations])
    varies = np.ptp(places, axis=0) > 0
    near = places[:, varies]
    # Each point is predicted by the others. For the roofline alone, with its three numbers, that is
    # nearly its deviation.
    left_out, spread = deviation, np.full(len(deviation), max(float(deviation.std()), LEAST_NOISE))
    plain = float(np.mean(np.abs(np.expm1(left_out))))
    reach, signal, noise = _likeliest(near, deviation)
    inverse = np.linalg.inv(_covariance(near, near, reach, signal) + noise**2 * np.eye(len(near)))
    by_others = (inverse @ deviation) / np.diag(inverse)
    corrected = float(np.mean(np.abs(np.expm1(by_others))))
    keep = plain > EXACT and corrected < GAIN * plain
    if keep:
        left_out, spread = by_others, 1 / np.sqrt(np.diag(inverse))
    else:
        signal, noise = 0.0, float(spread[0])
    rank = min(0.9 * (1 + 1 / len(deviation)), 1.0)  # the 90 % quantile of a new point
    ninety = float(np.quantile(np.abs(left_out), rank, method="higher"))
    all_reach = np.full(len(varies), FAR)
    all_reach[varies] = reach
    return OperatorFit(
        operations[0].operator,
        multiprocessors,
        overhead_s=float(costs[0]),
        flops_per_s=float(costs[1]),
        bytes_per_s=float(costs[2]),
        tile=tile,
        places=tuple(map(tuple, places.tolist())) if keep else (),
        weights=tuple((inverse @ deviation).tolist()) if keep else (),
        reach=tuple(all_reach.tolist()),
        signal=signal,
        noise=noise,
        band=max(ninety, BAND_FLOOR),
        spread=float(np.median(spread)),
        error=min(plain, corrected) if keep else plain,
        points=len(operations),
        low=tuple(places.min(axis=0).tolist()),
        high=tuple(places.max(axis=0).tolist()),
        unidentified=tuple(name for name, known in zip(TERMS, told, strict=True) if not known),
    )


def _model(costs: Vector, flops: Vector, moved: Vector) -> Vector:
    import numpy as np

    total: Vector = costs[0] + np.maximum(flops / costs[1], moved / costs[2])
    return total


def _roofline(flops: Vector, moved: Vector, seconds: Vector) -> tuple[Vector, list[bool]]:
    """Overhead and the two rates, and which of them the sizes determine (TERMS).

    Least squares of ln(model / timed), with large deviations damped.
    """
    import numpy as np
    from scipy.optimize import least_squares

    # With one ratio of flops to bytes, two terms are one; rounding would choose between them.
    seen = np.array([(flops / seconds).max(), (moved / seconds).max()])
    flops = flops * (np.ptp(np.log(flops / moved)) > TELLS)

    def deviation(logs: Vector) -> Vector:
        found: Vector = np.log(_model(np.exp(logs), flops, moved) / seconds)
        return found

    starts = [
        np.log([0.5 * seconds.min(), share * seen[0], part * seen[1]])
        for share in (1.0, 0.5)
        for part in (1.0, 0.4)
    ]
    runs = [
        least_squares(deviation, start, loss="soft_l1", f_scale=ROBUST, max_nfev=100)
        for start in starts
    ]
    best: Vector = np.exp(min(runs, key=lambda run: float(run.cost)).x)
    compute, memory = flops / best[1], moved / best[2]
    by_flops = bool((compute > (1 + TELLS) * memory).any())
    by_bytes = bool((memory > (1 + TELLS) * compute).any()) or not by_flops
    told = (best[1:] <= UNSEEN * seen) & [by_flops, by_bytes]
    best[1:] = np.where(told, best[1:], UNSEEN * seen)
    return best, [bool(best[0] >= TELLS * seconds.min()), *told.tolist()]


def _covariance(a: Vector, b: Vector, reach: Vector, signal: float) -> Vector:
    """Matern 3/2 covariance of the distances between places, each size scaled by its reach."""
    import numpy as np

    far = np.sqrt(3 * (((a[:, None] - b[None]) / reach) ** 2).sum(axis=-1))
    found: Vector = signal**2 * (1 + far) * np.exp(-far)
    return found


def _likeliest(places: Vector, deviation: Vector) -> tuple[Vector, float, float]:
    """Reach along each size, signal and noise that make the deviations most likely."""
    import numpy as np
    from scipy.optimize import minimize

    sizes = places.shape[1]
    spread = max(float(deviation.std()), 2 * LEAST_NOISE)

    def unlikely(logs: Vector) -> float:
        covariance = _covariance(places, places, np.exp(logs[:sizes]), math.exp(logs[sizes]))
        covariance += math.exp(2 * logs[-1]) * np.eye(len(places))
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e6
        white = np.linalg.solve(lower, deviation)
        prior = (logs[:sizes] - math.log(REACH_LOG2[0])) / REACH_LOG2[1]
        return float(0.5 * white @ white + np.log(np.diag(lower)).sum() + 0.5 * prior @ prior)

    bounds = [(-1.0, 4.0)] * sizes + [(-7.0, 2.0), (math.log(LEAST_NOISE), 1.0)]
    runs = [
        minimize(
            unlikely,
            np.r_[np.full(sizes, start), math.log(spread), math.log(0.2 * spread)],
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 60},
        )
        for start in (0.5, 1.5)
    ]
    logs = min(runs, key=lambda run: float(run.fun)).x
    return np.exp(logs[:sizes]), math.exp(logs[sizes]), math.exp(logs[-1])


def predict_operations(fit: OperatorFit, operations: Sequence[Operation]) -> list[Guess]:
    """Return seconds and 90 % band of each operation; a wrong operator is a ValueError."""
    import numpy as np

    for each in operations:
        if each.operator != fit.operator:
            raise ValueError(f"predict: {each.operator} by a fit of {fit.operator}")
    flops = np.array([each.wave_flops(fit.tile, fit.multiprocessors) for each in operations])
    moved = np.array([each.bytes for each in operations])
    costs = np.array([fit.overhead_s, fit.flops_per_s, fit.bytes_per_s])
    seconds = _model(costs, flops, moved)
    variance = np.full(len(operations), fit.noise**2)
    places = np.array([each.place for each in operations])
    if fit.places:
        timed, reach = np.array(fit.places), np.array(fit.reach)
        across = _covariance(places, timed, reach, fit.signal)
        own = _covariance(timed, timed, reach, fit.signal) + fit.noise**2 * np.eye(len(timed))
        seconds = seconds * np.exp(across @ np.array(fit.weights))
        known = np.einsum("ij,ji->i", across, np.linalg.solve(own, across.T))
        variance = variance + np.maximum(fit.signal**2 - known, 0.0)
    half = fit.band * np.maximum(np.sqrt(variance) / fit.spread, 1.0)
    beyond = (places < np.array(fit.low) - 1) | (places > np.array(fit.high) + 1)
    outside = np.any(beyond, axis=1)
    half = np.where(outside, 2 * half, half)
    guesses = []
    for i in range(len(operations)):
        compute, memory = flops[i] / fit.flops_per_s, moved[i] / fit.bytes_per_s
        bound: Bound = "compute" if compute >= memory else "memory"
        if fit.overhead_s >= max(compute, memory):
            bound = "overhead"
        took, wide = float(seconds[i]), math.exp(float(half[i]))
        guesses.append(
            Guess(
                took,
                took / wide,
                took * wide,
                max(took - fit.overhead_s, 0.0),
                bound,
                bool(outside[i]),
            )
        )
    return guesses
