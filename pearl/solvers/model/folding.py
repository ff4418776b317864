"""Linear programs made small where variables and rows are alike: colour refinement.

Two variables stay alike as long as they have the same cost and bounds, and the same coefficients in
rows that are alike; rows likewise (Grohe, Kersting, Mladenov and Selman 2014, "Dimension reduction
via colour refinement"). Some solution of least cost then gives alike variables one value: the mean
of a class in any solution keeps all rows. So one variable of a class and one row are enough, and
the least cost stays what it is. Hosts, devices and copies that can be exchanged fold to one each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class FoldedProgram(NamedTuple):
    """A program of one variable and one row a class.

    matrix: (row classes, variable classes), sparse. column, row: (variable classes,) and
    (row classes,), a member of each. of: (variables,), the class of each.
    """

    matrix: Any
    column: Ints
    row: Ints
    of: Ints


def fold_program(
    matrix: Any, columns: tuple[Floats, ...], rows: tuple[Floats, ...]
) -> FoldedProgram:
    """The classes of a program.

    matrix: (rows, variables), scipy's sparse rows, each entry once. columns, rows: what alike
    variables and alike rows have in common, each (variables,) or (rows,). Classes are told apart by
    hashes of 64 bits.
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
    return (numbers + 0.0).view(np.uint64)  # no negative zero


def _hash_columns(parts: tuple[Floats, ...], size: int) -> Hashes:
    hashes = np.zeros(size, np.uint64)
    for part in parts:
        hashes = _mix(hashes ^ _mix(_bits(part)))
    return hashes


def _mix(x: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sums(entries: Hashes, first: NDArray[Any]) -> Hashes:
    """The sum of the entries of each row or column, modulo 2^64."""
    sums = np.zeros(len(entries) + 1, np.uint64)
    np.cumsum(entries, out=sums[1:])
    differences: Hashes = sums[first[1:]] - sums[first[:-1]]
    return differences
