"""Folding of linear programs with equivalent variables and rows, by colour refinement.

Variables are equivalent if they have the same cost and bounds, and the same coefficients in
equivalent rows; rows are defined in the same way (Grohe, Kersting, Mladenov and Selman 2014,
"Dimension reduction via colour refinement"). Some optimal solution then gives equivalent variables
the same value: the mean of a class in any solution is within all rows. So one variable and one row
per class suffice, and the least cost does not change. Interchangeable hosts, devices and copies
fold to one each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class FoldedProgram(NamedTuple):
    """A program with one variable and one row per class.

    matrix: (row classes, variable classes), sparse.
    column, row: (variable classes,) and (row classes,), a member of each class.
    of: (variables,), the class of each variable.
    """

    matrix: Any
    column: Ints
    row: Ints
    of: Ints


def fold_program(
    matrix: Any, columns: tuple[Floats, ...], rows: tuple[Floats, ...]
) -> FoldedProgram:
    """Return the classes of a program.

    matrix: (rows, variables), scipy's sparse rows, without duplicate entries. columns, rows: the
    properties that equivalent variables and rows have in common, each (variables,) or (rows,).
    Hashes of 64 bits distinguish the classes.
    """
    from scipy.sparse import csr_array

    across = matrix.tocsc()
    column, row = _hash_columns(columns, matrix.shape[1]), _hash_columns(rows, matrix.shape[0])
    by_row, by_column = _mix(_bits(matrix.data)), _mix(_bits(across.data))
    before = 0
    while (classes := len(np.unique(row)) + len(np.unique(column))) > before:
        before = classes
        row = _mix(row + _sums(_mix(by_row ^ column[matrix.indices]), matrix.indptr))
        column = _mix(column + _sums(_mix(by_column ^ row[across.indices]), across.indptr))
    _, first, of = np.unique(column, return_index=True, return_inverse=True)
    row_members = np.sort(np.unique(row, return_index=True)[1])
    ones = np.ones(len(of))
    member = csr_array((ones, (np.arange(len(of)), of)), shape=(len(of), len(first)))
    return FoldedProgram((matrix[row_members] @ member).tocsr(), first, row_members, of)


def _bits(numbers: Floats) -> Hashes:
    return (numbers + 0.0).view(np.uint64)  # -0.0 becomes 0.0


def _hash_columns(parts: tuple[Floats, ...], size: int) -> Hashes:
    hashes = np.zeros(size, np.uint64)
    for part in parts:
        hashes = _mix(hashes ^ _mix(_bits(part)))
    return hashes


def _mix(x: Hashes) -> Hashes:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sums(entries: Hashes, first: NDArray[Any]) -> Hashes:
    """Return the sum of the entries of each row or column, modulo 2^64."""
    sums = np.zeros(len(entries) + 1, np.uint64)
    np.cumsum(entries, out=sums[1:])
    differences: Hashes = sums[first[1:]] - sums[first[:-1]]
    return differences
