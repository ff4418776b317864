"""Products of float32 matrices with what a dense layer adds to them: bias, ReLU, its derivative.

A product is computed in tiles of a few rows by a few vectors that stay in registers while the inner
index runs (as in Goto and van de Geijn 2008, without their packing: the matrices of these networks
lie in the caches). The tile is generated as LLVM vector code, so that it is as wide as the host's
vectors. At 64 by 64 by 64 this is as fast as OpenBLAS with its AVX-512 kernels and three times as
fast as with its AVX2 ones, and it does not depend on which of them OpenBLAS takes.

Each element is a sum over the inner index in rising order, product and sum fused where the host can
(else rounded twice), from its bias or 0. So it is the same number whatever the tile, the number of
rows and their grouping. NaN goes through ReLU and through its derivative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pearl_devices.primitives.native import fast, inner
from pearl_devices.primitives.tiles import LANES, ROWS, tile, turn_block, whole_squares


def _strip(turned: bool, finish: str, vectors: int, partial: bool) -> Any:
    """All rows of a strip of `vectors` of columns: of out from column j, of b from b_at."""
    most, four, two, one = (tile(r, vectors, partial, turned, finish) for r in (ROWS, 4, 2, 1))
    by_row, by_cell = not turned, finish == "gate"

    @inner
    def strip(m, j, columns, depth, a, stride, b, b_at, b_row, out, row, extra, relu):
        r = 0
        while r < m:
            left, at = m - r, r * row + j
            start, more = r * stride if by_row else r, at if by_cell else j
            if left >= ROWS:
                most(
                    a,
                    start,
                    stride,
                    b,
                    b_at,
                    b_row,
                    out,
                    at,
                    row,
                    extra,
                    more,
                    relu,
                    depth,
                    columns,
                )
                r += ROWS
            elif left >= 4:
                four(
                    a,
                    start,
                    stride,
                    b,
                    b_at,
                    b_row,
                    out,
                    at,
                    row,
                    extra,
                    more,
                    relu,
                    depth,
                    columns,
                )
                r += 4
            elif left >= 2:
                two(
                    a,
                    start,
                    stride,
                    b,
                    b_at,
                    b_row,
                    out,
                    at,
                    row,
                    extra,
                    more,
                    relu,
                    depth,
                    columns,
                )
                r += 2
            else:
                one(
                    a,
                    start,
                    stride,
                    b,
                    b_at,
                    b_row,
                    out,
                    at,
                    row,
                    extra,
                    more,
                    relu,
                    depth,
                    columns,
                )
                r += 1

    return strip


def _strips(turned: bool, finish: str) -> tuple[Any, Any]:
    """Strips of two whole vectors, and of one vector or less."""
    return _strip(turned, finish, 2, False), _strip(turned, finish, 1, True)


def _product(turned: bool, finish: str) -> Any:
    """The compiled product: m by n elements of `depth` terms each."""
    full, part = _strips(turned, finish)

    @inner
    def product(m, n, depth, a, stride, b, b_row, out, row, extra, relu):
        j = 0
        while j < n:
            if n - j >= 2 * LANES:
                full(m, j, 2 * LANES, depth, a, stride, b, j, b_row, out, row, extra, relu)
                j += 2 * LANES
            else:
                columns = min(n - j, LANES)
                part(m, j, columns, depth, a, stride, b, j, b_row, out, row, extra, relu)
                j += columns

    return product


_layer, _outer = _product(False, "bias"), _product(True, "")
_gated_full, _gated_part = _strips(False, "gate")


@fast
def affine(x, weights, bias, out, relu):
    """out (rows, o) = x (rows, i) · weights (i, o) + bias (o), then ReLU if `relu` is 1."""
    i, o = weights.shape
    _layer(x.shape[0], o, i, x, i, weights, o, out, o, bias, relu)


@fast
def outer(x, d, out):
    """out (i, o) = xᵀ · d, of x (rows, i) and d (rows, o): the gradient of a layer's weights."""
    rows, i = x.shape
    _outer(i, d.shape[1], rows, x, i, d, d.shape[1], out, d.shape[1], d, 0)


@fast
def transpose(weights, turned):
    """turned (o, i) = weights (i, o)ᵀ."""
    i, o = weights.shape
    whole_i, whole_o = i - i % LANES, o - o % LANES
    for r in range(0, whole_i, LANES):
        for c in range(0, whole_o, LANES):
            turn_block(weights, r * o + c, o, turned, c * i + r, i)
    for r in range(i):
        for c in range(whole_o if r < whole_i else 0, o):
            turned[c, r] = weights[r, c]


@fast
def through(d, weights, panel, out, gate, relu):
    """out (rows, i) = d (rows, o) · weights (i, o)ᵀ, and 0 where gate ≤ 0 if `relu` is 1.

    gate (rows, i): the activations below. panel: flat scratch of o · min(i, 2 · LANES) elements; it
    takes the transposed weights of one strip of columns after the other.
    """
    (i, o), rows = weights.shape, d.shape[0]
    j = 0
    while j < i:
        columns = 2 * LANES if i - j >= 2 * LANES else min(i - j, LANES)
        turned = panel[: o * columns].reshape(o, columns)
        transpose(weights[j : j + columns], turned)
        if columns == 2 * LANES:
            _gated_full(rows, j, columns, o, d, o, turned, 0, columns, out, i, gate, relu)
        else:
            _gated_part(rows, j, columns, o, d, o, turned, 0, columns, out, i, gate, relu)
        j += columns


ONE = np.ones(1, np.float32)


@fast
def column_sums(d, out):
    """out (o) = the sums of the columns of d (rows, o): the gradient of a layer's biases."""
    rows, o = d.shape
    _outer(1, o, rows, ONE, 0, d, o, out, o, d, 0)


@fast
def total_squares(x):
    """Sum of squares of a flat vector, in 4 · LANES interleaved parts."""
    whole = x.size - x.size % (4 * LANES)
    total = whole_squares(x, whole) if whole > 0 else np.float32(0.0)
    for j in range(whole, x.size):
        total += x[j] * x[j]
    return total
