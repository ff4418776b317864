"""A mixed-integer linear program, built term by term and solved by HiGHS (`highs`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.errors import SpecError
from pearl.solvers.model import highs
from pearl.solvers.model.folding import fold_program
from pearl.solvers.model.safe_dual import Floats, Sides, safe_bound
from pearl.time_limit import look

Terms = list[tuple[int, float]]
"""Σ coefficient · variable, as (variable, coefficient) pairs."""

Parts = tuple[Any, Floats, Sides, Sides]
"""Matrix by rows (scipy), cost, bounds of the variables, bounds of the rows."""

TOLERANCE = 1e-7
"""HiGHS' tolerance for the optimality of a linear program, in the units of the program."""

ENTRIES = 20_000
"""Number of entries of a folded relaxation from which pdlp solves it. The multipliers of pdlp prove
a bound at any time; an unfinished interior point method proves nothing (assumed: HiGHS' ipm takes
less than a second below this size)."""

LARGEST = 1e15
"""HiGHS rejects coefficients from this size on (its option large_matrix_value)."""

GAP = 1e-9
"""Relative difference of value and bound at which an integer program counts as solved."""


@dataclass
class Linear:
    """Variables low ≤ v ≤ high, some of them integer, and rows low ≤ Σ coefficient · v ≤ high."""

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
        look()
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
        """Return (proven lower bound, solution, whether the solver finished).

        A finished run without a solution and with an infinite bound proves that no solution costs
        at most `below`.
        """
        until = time.monotonic() + seconds
        parts = self._parts(objective, below)
        solution = _ask(parts, np.array(self.integer, np.int32), until, "choose")
        if solution is None:
            return 0.0, None, False
        if solution.status == "infeasible":
            return math.inf, None, True
        dual = max(0.0, solution.bound) if math.isfinite(solution.bound) else 0.0
        return dual, solution.x, solution.status == "optimal" and solution.x is not None

    def relax(
        self,
        objective: Terms,
        seconds: float,
        method: highs.LpMethod = "choose",
    ) -> float:
        """Return a lower bound from the relaxation without integers, folded (`folding`).

        The bound comes from the dual solution: exact to the tolerance of a simplex or interior
        point method that finished, else what the multipliers prove (`safe_bound`). The bound is 0
        if nothing is proven.
        """
        until = time.monotonic() + seconds
        parts = self._parts(objective, math.inf)
        matrix, cost, box, rows = parts
        fold = fold_program(matrix, (cost, *box), rows)
        (lower, upper), used = box, fold.column
        cost = np.bincount(fold.of, cost, len(used)).astype(np.float64)
        parts = (
            fold.matrix,
            cost,
            (lower[used], upper[used]),
            (rows[0][fold.row], rows[1][fold.row]),
        )
        method = "pdlp" if len(fold.matrix.data) > ENTRIES else method
        solution = _ask(parts, np.zeros(len(used), np.int32), until, method)
        if solution is None:
            return 0.0
        proven = 0.0
        if solution.status == "optimal" and method != "pdlp":
            proven = solution.value - TOLERANCE * max(1.0, abs(solution.value))
        elif solution.dual is not None:
            proven = safe_bound(*parts, solution.dual)
        return max(0.0, proven)

    def _parts(self, objective: Terms, below: float) -> Parts:
        """Return the program whose objective is at most `below`.

        Raises:
            SpecError: a coefficient is too large for HiGHS.
        """
        from scipy.sparse import csr_array

        columns, upper = len(self.upper), np.array(self.upper, np.float64)
        cost = np.zeros(columns)
        for v, c in objective:
            cost[v] += c
        rows, column, values = list(self.rows), list(self.columns), list(self.values)
        low, high = list(self.low), list(self.high)
        if len(objective) == 1:  # presolve uses a bound of a variable better than a row
            (v, c), *_ = objective
            upper[v] = min(upper[v], below / c)
        elif below < math.inf:
            rows += [len(low)] * len(objective)
            column += [v for v, _ in objective]
            values += [c for _, c in objective]
            low.append(-math.inf)
            high.append(below)
        shape = len(low), columns
        matrix = csr_array((values, (rows, column)), shape=shape)  # adds duplicate entries
        largest = max(np.abs(cost).max(initial=0.0), np.abs(matrix.data).max(initial=0.0))
        if not largest < LARGEST:
            raise SpecError(
                "the times, sizes and energies of this problem differ too much for a linear "
                f"program: a coefficient is {largest:.3g}, HiGHS accepts less than {LARGEST:g}; "
                "use numbers of more similar size, or another method"
            )
        lower, bottom, top = (np.array(each, np.float64) for each in (self.lower, low, high))
        return matrix, cost, (lower, upper), (bottom, top)


def _ask(
    parts: Parts, integer: NDArray[np.int32], until: float, method: highs.LpMethod
) -> highs.LpSolution | None:
    """Return the answer of HiGHS to a program; None if HiGHS does not stop in time."""
    matrix, cost, box, rows = parts
    return highs.solve(highs.LinearProgram(matrix, cost, *box, *rows, integer, until, GAP, method))
