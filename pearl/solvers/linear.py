"""A mixed-integer linear program, gathered term by term and given to HiGHS.

HiGHS: Huangfu and Hall 2018, through `scipy.optimize`.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Terms = list[tuple[int, float]]
"""Σ coefficient · variable, as (variable, coefficient) pairs."""

TOLERANCE = 1e-7
"""HiGHS' tolerance for optimality of a linear program, in the program's own units."""


@contextmanager
def silent() -> Iterator[None]:
    """Nothing reaches standard output: HiGHS 1.12 prints a line of its own debugging there, past
    its switch for output, and a plan's JSON may be going to it."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C still buffers goes nowhere too
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@dataclass
class Linear:
    """Variables low ≤ v ≤ high, some of them whole, and rows low ≤ Σ coefficient · v ≤ high."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def variable(self, high: float = math.inf, low: float = 0.0, integer: bool = False) -> int:
        self.lower.append(low)
        self.upper.append(high)
        self.integer.append(integer)
        return len(self.upper) - 1

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.low)
        for column, value in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)

    def minimise(
        self, objective: Terms, below: float, seconds: float
    ) -> tuple[float, NDArray[np.float64] | None, bool]:
        """(proven lower bound, solution, whether the solver finished); a finished run without a
        solution and with an infinite bound says that there is none of at most `below`."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        goal, upper = self._goal(objective), np.array(self.upper)
        matrix = csr_array((self.values, (self.rows, self.columns)), shape=self._shape)
        constraints = [LinearConstraint(matrix, self.low, self.high)]
        if below < math.inf:
            if len(objective) == 1:  # a bound of a variable is worth more to presolve than a row
                (v, c), *_ = objective
                upper[v] = min(upper[v], below / c)
            else:
                constraints.append(LinearConstraint(goal[None, :], -np.inf, below))
        with silent():
            result = milp(
                goal,
                integrality=np.array(self.integer, dtype=int),
                bounds=Bounds(np.array(self.lower), upper),
                constraints=constraints,
                options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 1e-9},
            )
        if result.status == 2:
            return math.inf, None, True
        dual = result.mip_dual_bound
        dual = 0.0 if dual is None or not math.isfinite(dual) else max(0.0, dual)
        return dual, result.x, result.status == 0 and result.x is not None

    def relax(
        self,
        objective: Terms,
        seconds: float,
        method: Literal["highs", "highs-ds", "highs-ipm"] = "highs",
    ) -> tuple[float, NDArray[np.float64] | None]:
        """With fractions allowed: (lower bound, solution); (0, None) if there was no time enough.

        The bound is that of the dual solution, to the solver's tolerance.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        matrix = csr_array((self.values, (self.rows, self.columns)), shape=self._shape)
        low, high = np.array(self.low), np.array(self.high)
        equal = low == high
        below, above = np.isfinite(high) & ~equal, np.isfinite(low) & ~equal
        with silent():
            result = linprog(  # type: ignore[call-overload]
                self._goal(objective),
                A_ub=vstack([matrix[below], -matrix[above]]),
                b_ub=np.concatenate([high[below], -low[above]]),
                A_eq=matrix[equal] if equal.any() else None,
                b_eq=low[equal] if equal.any() else None,
                bounds=np.column_stack([self.lower, self.upper]),
                method=method,
                options={"time_limit": max(seconds, 0.01)},
            )
        if result.status != 0:
            return 0.0, None
        return max(0.0, float(result.fun) - TOLERANCE * max(1.0, abs(result.fun))), result.x

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.low), len(self.upper)

    def _goal(self, objective: Terms) -> NDArray[np.float64]:
        goal = np.zeros(len(self.upper))
        for v, c in objective:
            goal[v] += c
        return goal
