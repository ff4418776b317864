"""Products of float32 matrices with the additions of a dense layer: bias, ReLU, its derivative.

A product is computed in tiles of a few rows by a few vectors; a tile stays in registers while the
inner index runs (Goto and van de Geijn 2008). Only long strips of the right factor are copied into
one piece; the rest of the data fits the caches at these sizes of networks. The tile is generated as
LLVM vector code, so it is as wide as the vectors of the target processor.

Each element is a sum over the inner index in rising order, starting from its bias or 0. Product and
sum are fused if the host can, else rounded twice. With one or two columns, DOT_PARTS such sums are
added at the end. So an element has the same bits for any tile, number of rows and grouping, and for
any length of vectors. NaN passes through ReLU and through its derivative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import intrinsic

from pearl_devices.primitives.math.tiles import dots, pack_strip, tile, turn_block, whole_squares
from pearl_devices.primitives.math.vectors import (
    DOT_PARTS,
    LANES,
    ROWS,
    SQUARE_PARTS,
    STRIP,
    SUMS,
)
from pearl_devices.primitives.native import fast, inner, inner_counted

PACKED_DEPTH, PACKED_ROWS = 128, 32
"""Inner indices and rows from which a strip of the right factor is first copied into one piece. Its
rows lie so far apart that they would evict each other from the nearest cache, and the copy is less
than a hundredth of the work. The order of a sum does not change."""


def _strip(turned: bool, finish: str, vectors: int, partial: bool) -> Any:
    """Compile all rows of a strip of `vectors` of columns: of out from column j, of b from b_at."""
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
    """Compile strips of two whole vectors, and of one vector or less."""
    return _strip(turned, finish, 2, False), _strip(turned, finish, 1, True)


def _product(turned: bool, finish: str) -> Any:
    """Compile the product: m by n elements of `depth` terms each."""
    full, part = _strips(turned, finish)

    @inner_counted
    def product(m, n, depth, a, stride, b, b_row, out, row, extra, relu):
        flat = b.reshape(b.size)
        packs = depth >= PACKED_DEPTH and m >= PACKED_ROWS and n >= STRIP
        panel = np.empty(depth * STRIP, np.float32) if packs else flat
        wide, panel_row = np.int64(STRIP), np.int64(STRIP) if packs else b_row
        j = np.int64(0)
        while n - j >= wide:
            if packs:
                pack_strip(flat, j, b_row, panel, depth)
            at = np.int64(0) if packs else j
            full(m, j, wide, depth, a, stride, panel, at, panel_row, out, row, extra, relu)
            j += wide
        while j < n:
            columns = min(n - j, LANES)
            part(m, j, columns, depth, a, stride, flat, j, b_row, out, row, extra, relu)
            j += columns

    return product


def _narrow(columns: int, interleaved: bool) -> Any:
    """Compile the product with one or two columns."""
    rows = min(ROWS, SUMS * LANES // (DOT_PARTS * columns))
    most, one = dots(rows, columns, interleaved), dots(1, columns, interleaved)

    @inner
    def narrow(m, depth, a, b, out):
        r = 0
        while r + rows <= m:
            most(a, r * depth, depth, b, 0, depth, out, r * columns, columns, depth)
            r += rows
        while r < m:
            one(a, r * depth, depth, b, 0, depth, out, r * columns, columns, depth)
            r += 1

    return narrow


_one_column, _two_columns, _two_rows = _narrow(1, False), _narrow(2, True), _narrow(2, False)
_layer, _outer = _product(False, "bias"), _product(True, "")
_gated_full, _gated_part = _strips(False, "gate")


@fast
def affine(x, weights, bias, out, relu):
    """out (rows, o) = x (rows, i) · weights (i, o) + bias (o), then ReLU if `relu` is 1."""
    i, o = weights.shape
    if o > 2 or i < DOT_PARTS:
        _layer(x.shape[0], o, i, x, i, weights, o, out, o, bias, relu)
        return
    if o == 1:
        _one_column(x.shape[0], i, x, weights, out)
    else:
        _two_columns(x.shape[0], i, x, weights, out)
    below = np.float32(-np.inf) if relu == 0 else np.float32(0.0)
    for r in range(x.shape[0]):
        for c in range(o):
            value = out[r, c] + bias[c]
            out[r, c] = np.float32(0.0) if value < below else value


@fast
def weight_gradient(x, d, out):
    """out (i, o) = xᵀ · d, with x (rows, i) and d (rows, o): the gradient of a layer's weights."""
    rows, i = x.shape
    _outer(i, d.shape[1], rows, x, i, d, d.shape[1], out, d.shape[1], d, np.int64(0))


@fast
def outer_narrow(x, d, spare, out):
    """Compute `weight_gradient` for fewer columns than a vector has lanes. spare: flat scratch of
    i · o elements for the transposed product."""
    (rows, i), o = x.shape, d.shape[1]
    if o == 1:
        _outer(np.int64(o), i, rows, d, o, x, i, out, i, d, np.int64(0))
        return
    turned = spare[: o * i].reshape(o, i)
    _outer(o, i, rows, d, o, x, i, turned, i, d, np.int64(0))
    for k in range(i):
        for c in range(o):
            out[k, c] = turned[c, k]


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
def input_gradient(d, weights, panel, out, gate, relu):
    """out (rows, i) = d (rows, o) · weights (i, o)ᵀ, and 0 where gate ≤ 0 if `relu` is 1.

    gate (rows, i): the activations below. panel: flat scratch of o · min(i, 2 · LANES) elements for
    the transposed weights of one strip of columns at a time.
    """
    (i, o), rows = weights.shape, d.shape[0]
    if i <= 2 and relu == 0:
        if i == 1:
            _one_column(rows, o, d, weights, out)
        else:
            _two_rows(rows, o, d, weights, out)
        return
    j = first = np.int64(0)
    while j < i:
        columns = 2 * LANES if i - j >= 2 * LANES else min(i - j, LANES)
        turned = panel[: o * columns].reshape(o, columns)
        transpose(weights[j : j + columns], turned)
        if columns == 2 * LANES:
            _gated_full(rows, j, columns, o, d, o, turned, first, columns, out, i, gate, relu)
        else:
            _gated_part(rows, j, columns, o, d, o, turned, first, columns, out, i, gate, relu)
        j += columns


ONE = np.ones((1, 1), np.float32)


def _writable(typing, array):
    """Give a constant array the type of others, so that its user is not compiled once more."""
    return array.copy(readonly=False)(array), lambda context, builder, signature, given: given[0]


writable: Any = intrinsic(_writable)


@fast
def column_sums(d, out):
    """out (o) = the column sums of d (rows, o): the gradient of a layer's biases."""
    rows, o = d.shape
    _outer(
        np.int64(1), o, rows, writable(ONE), np.int64(0), d, o, out.reshape(1, o), o, d, np.int64(0)
    )


@fast
def total_squares(x):
    """Sum of squares of a flat vector, in SQUARE_PARTS interleaved parts."""
    whole = x.size - x.size % SQUARE_PARTS
    total = whole_squares(x, whole) if whole > 0 else np.float32(0.0)
    for j in range(whole, x.size):
        total += x[j] * x[j]
    return total
