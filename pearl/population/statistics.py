"""Interquartile means with bootstrap intervals, after Agarwal et al. 2021 (arXiv 2108.13264)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLES = 2_000
LEVEL = 0.95


class Interval(NamedTuple):
    """An interquartile mean and its confidence interval of LEVEL, which has no width for one score.

    mean: interquartile mean.
    low: lower end of the interval.
    high: upper end of the interval.
    """

    mean: float
    low: float
    high: float


def interquartile_mean(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Average the last axis without a quarter, rounded down, at each end."""
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    middle = ordered[..., cut : scores.shape[-1] - cut]
    return np.asarray(middle.mean(axis=-1))


def interval(scores: Sequence[float], seed: int = 0, *, resamples: int = RESAMPLES) -> Interval:
    """Compute the interquartile mean of the scores of all seeds in one environment, which are one
    stratum of the stratified bootstrap, and its percentile interval. At least one score is needed.
    """
    values = np.asarray(scores, np.float64)
    drawn = np.random.default_rng(seed).integers(0, values.size, (resamples, values.size))
    means = interquartile_mean(values[drawn])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(interquartile_mean(values)), float(low), float(high))
