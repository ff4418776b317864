"""A bound of a linear program, proved from any multipliers of its rows, including rounding.

For every y, c · x = y · A x + (c − Aᵀ y) · x. Within the bounds of rows and variables, the right
side is at least a sum of one term per row and one per variable (weak duality). So the multipliers
of a stopped solver also prove a bound (Neumaier and Shcherbina 2004).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sides = tuple[Floats, Floats]

EPS = float(np.finfo(np.float64).eps)


def safe_bound(matrix: Any, cost: Floats, box: Sides, rows: Sides, dual: Floats) -> float:
    """Return a lower bound on the cost of every x with box[0] ≤ x ≤ box[1] and rows[0] ≤ matrix x ≤
    rows[1]; −inf if the multipliers prove nothing.

    matrix: (rows, variables), scipy's sparse rows. cost, box: (variables,). rows, dual: (rows,).
    A multiplier of a side without limit counts as 0. If a variable without upper limit would have a
    negative reduced cost, one factor shrinks all multipliers.
    """
    (lower, upper), (low, high) = box, rows
    side = np.where(dual > 0, low, high)
    dual = np.where(np.isfinite(side) & np.isfinite(dual), dual, 0.0)
    side = np.where(dual == 0, 0.0, side)
    across = matrix.T.tocsr()
    entries = np.diff(across.indptr) + 4
    size = abs(across)
    priced, error = across @ dual, EPS * entries * (size @ np.abs(dual))
    endless = ~np.isfinite(upper) & (priced + error > cost)
    if (cost[endless] <= 0).any():
        return -math.inf
    if endless.any():
        dual = dual * float((cost[endless] / (priced + error)[endless]).min() * (1 - 4 * EPS))
        priced, error = across @ dual, EPS * entries * (size @ np.abs(dual))
    reduced = cost - priced
    error += EPS * np.abs(cost)
    with np.errstate(invalid="ignore"):
        ends = [np.where(r == 0, 0.0, r * x) for r in (reduced - error, reduced + error)
                for x in (lower, upper)]  # fmt: skip
    terms = np.concatenate([dual * side, np.min(ends, axis=0)])
    if not np.isfinite(terms).all():
        return -math.inf
    total = math.fsum(terms)
    return total - 4 * EPS * (abs(total) + math.fsum(np.abs(terms)))
