"""Programs made small where variables and rows are alike: the least cost stays."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from pearl.solvers.model.folding import fold_program


def blocks(count: int, seed: int):
    """A program of so many blocks of variables and rows alike, and a row that joins each with the
    first variable: cost, matrix, least and most of its rows. All variables are from 0 to 5."""
    r = np.random.default_rng(seed)
    size, rows = int(r.integers(2, 5)), int(r.integers(1, 5))
    block = r.integers(-1, 3, (rows, size)).astype(float)
    most = r.integers(2, 9, rows).astype(float)
    least = np.minimum(r.integers(0, 3, rows).astype(float), most)
    whole = np.zeros((count * (rows + 1), 1 + count * size))
    for k in range(count):
        at, columns = k * (rows + 1), slice(1 + k * size, 1 + (k + 1) * size)
        whole[at : at + rows, columns] = block
        whole[at + rows, columns] = -1.0
        whole[at + rows, 0] = 1.0
    low, high = np.tile([*least, 0.0], count), np.tile([*most, 99.0], count)
    cost = np.concatenate([[1.0], np.tile(r.integers(0, 3, size) / 8.0, count)])
    return cost, whole, low, high


def least_cost(cost, matrix, low, high) -> float | None:
    above = np.vstack([matrix, -matrix])
    return linprog(cost, above, np.concatenate([high, -low]), bounds=(0, 5)).fun


@pytest.mark.parametrize("seed", range(8))
def test_blocks_that_are_alike_fold_to_one_of_the_same_least_cost(seed):
    sizes = []
    for count in (1, 6):
        cost, matrix, low, high = blocks(count, seed)
        fold = fold_program(csr_array(matrix), (cost,), (low, high))
        small = np.bincount(fold.of, weights=cost)
        found = least_cost(small, fold.matrix.toarray(), low[fold.row], high[fold.row])
        assert found == pytest.approx(least_cost(cost, matrix, low, high))
        sizes.append(fold.matrix.shape)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("what", ["cost", "coefficient", "row"])
def test_what_differs_in_anything_is_not_folded(what):
    cost, matrix, low, high = blocks(6, 0)
    before = fold_program(csr_array(matrix), (cost,), (low, high)).matrix.shape
    if what == "cost":
        cost[-1] += 1.0
    elif what == "coefficient":
        matrix[-1, -1] = -2.0
    else:
        high[-1] = 98.0
    after = fold_program(csr_array(matrix), (cost,), (low, high)).matrix.shape
    assert after > before


@pytest.mark.parametrize(
    ("cost", "matrix", "shape"),
    [
        ([1.0, 2.0], [[1.0, 1.0]], (1, 2)),
        ([1.0, 1.0], [[1.0, 1.0], [0.5, 0.5]], (2, 1)),
        ([1.0, 1.0], [[1.0, 0.5], [0.5, 1.0]], (1, 1)),
    ],
)
def test_alike_are_those_with_the_same_cost_and_coefficients_alone(cost, matrix, shape):
    low = np.ones(len(matrix))
    fold = fold_program(csr_array(np.array(matrix)), (np.array(cost),), (low, 9 * low))
    assert fold.matrix.shape == shape
