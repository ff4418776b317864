"""The bound that any multipliers of a linear program prove: never above the truth."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from benchmarks.solver.instances import large
from pearl.planning.problem import Problem
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.model import linear
from pearl.solvers.model.safe_dual import safe_bound
from pearl.solvers.model.search_space import search_spaces


def program(r, endless):
    """A feasible random program; some variables without upper limit, whose cost is positive."""
    rows, columns = int(r.integers(1, 8)), int(r.integers(1, 10))
    matrix = r.uniform(-2, 2, (rows, columns)) * (r.random((rows, columns)) < 0.6)
    lower = r.uniform(-3, 0, columns)
    upper = lower + r.uniform(0, 5, columns)
    cost = r.uniform(-2, 2, columns)
    inside = matrix @ r.uniform(lower, upper)
    low = np.where(r.random(rows) < 0.3, -np.inf, inside - r.uniform(0, 1, rows))
    high = np.where(r.random(rows) < 0.3, np.inf, inside + r.uniform(0, 1, rows))
    if endless:
        free = r.random(columns) < 0.3
        upper = np.where(free, np.inf, upper)
        cost = np.where(free, np.abs(cost) + 0.1, cost)
    return matrix, cost, (lower, upper), (low, high)


def least(matrix, cost, box, rows):
    """The optimum by scipy, and the multipliers of the rows."""
    finite_low, finite_high = np.isfinite(rows[0]), np.isfinite(rows[1])
    solved = linprog(
        cost,
        A_ub=np.vstack([matrix[finite_high], -matrix[finite_low]]),
        b_ub=np.concatenate([rows[1][finite_high], -rows[0][finite_low]]),
        bounds=np.array(box).T,
        method="highs",
    )
    assert solved.status == 0
    dual = np.zeros(len(matrix))
    prices = solved.ineqlin.marginals
    dual[finite_high] += prices[: finite_high.sum()]
    dual[finite_low] -= prices[finite_high.sum() :]
    return solved.fun, dual


@pytest.mark.parametrize("endless", [False, True])
def test_a_bound_is_never_above_the_optimum_whatever_the_multipliers(endless):
    """Those of the optimum prove it, but for rounding; others prove less."""
    r = np.random.default_rng(1)
    for _ in range(150):
        matrix, cost, box, rows = program(r, endless)
        value, dual = least(matrix, cost, box, rows)
        sparse = csr_array(matrix)
        size = 1 + np.abs(dual).sum()
        assert safe_bound(sparse, cost, box, rows, dual) == pytest.approx(value, abs=1e-7 * size)
        for spread in (1e-6, 0.1, 3.0):
            other = dual + r.normal(0, spread, len(dual))
            assert safe_bound(sparse, cost, box, rows, other) <= value + 1e-9 * size
        useless = np.full(len(dual), np.nan)
        assert safe_bound(sparse, cost, box, rows, useless) <= value + 1e-9 * size


def test_rounding_is_on_the_safe_side():
    """Against the same sum in fractions, which have no rounding."""
    r, above = np.random.default_rng(2), 0
    for _ in range(100):
        matrix, cost, box, rows = program(r, endless=False)
        dual = r.normal(0, 1, len(matrix))
        side = np.where(dual > 0, *rows)
        dual = np.where(np.isfinite(side), dual, 0.0)
        exact = sum(
            (Fraction(y) * Fraction(b) for y, b in zip(dual, side, strict=True) if y), Fraction(0)
        )
        for j, c in enumerate(cost):
            reduced = Fraction(c) - sum(
                Fraction(y) * Fraction(a) for y, a in zip(dual, matrix[:, j], strict=True)
            )
            exact += min(reduced * Fraction(x[j]) for x in box)
        bound = safe_bound(csr_array(matrix), cost, box, rows, dual)
        assert Fraction(bound) <= exact
        assert float(exact) - bound < 1e-12 * (1 + abs(float(exact)) + np.abs(dual).sum() * 50)
        plain = dual @ np.where(dual == 0, 0, side)
        reduced = cost - matrix.T @ dual
        above += Fraction(plain + np.minimum(reduced * box[0], reduced * box[1]).sum()) > exact
    assert above > 10  # the plain sum in floating point is often above


def test_a_reduced_cost_below_zero_without_an_upper_limit_proves_nothing_or_is_mended():
    one = csr_array(np.array([[1.0]]))
    rows, box = (np.array([2.0]), np.array([np.inf])), (np.zeros(1), np.array([np.inf]))
    assert safe_bound(one, np.array([1.0]), box, rows, np.array([4.0])) == pytest.approx(2.0)
    assert safe_bound(one, np.array([0.0]), box, rows, np.array([4.0])) == -np.inf


def test_a_relaxation_that_was_stopped_proves_nearly_all_of_its_optimum(monkeypatch):
    """pdlp ends after its steps; the interior point method goes on to the optimum."""
    graph, costs = large(0, 1.0, tasks=120, devices=8, shape="layered")
    (space,) = search_spaces(Problem(graph, costs))
    loads = LoadProgram(space, 0.0).linear
    objective = [(0, 1.0)]
    monkeypatch.setattr(linear, "ENTRIES", 10**9)
    optimum = loads.relax(objective, 3600.0, "ipm")
    monkeypatch.setattr(linear, "ENTRIES", 0)
    stopped = loads.relax(objective, 3600.0, "ipm")
    assert 0.99 * optimum < stopped <= optimum * (1 + 1e-6)
