"""The products of a dense layer against float64, and that grouping rows changes no bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError

from pearl_devices.primitives.math.products import (
    PACKED_DEPTH,
    PACKED_ROWS,
    affine,
    column_sums,
    input_gradient,
    outer_narrow,
    total_squares,
    transpose,
    weight_gradient,
)
from pearl_devices.primitives.math.vectors import STRIP

Array = npt.NDArray[np.float32]
SIZES = st.one_of(st.integers(1, 70), st.sampled_from([1, 2, 16, 31, 32, 33, 64, 96]))


def normal(random: np.random.Generator, *shape: int) -> Array:
    return random.normal(size=shape).astype(np.float32)


def close(found: Array, expected: npt.NDArray[np.float64], terms: int) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6 * np.sqrt(terms))


@settings(max_examples=120, deadline=None)
@given(rows=SIZES, i=SIZES, o=SIZES, relu=st.integers(0, 1), seed=st.integers(0, 2**32 - 1))
def test_products_of_any_shape_equal_float64(
    rows: int, i: int, o: int, relu: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x, d = normal(random, rows, i), normal(random, rows, o)
    weights, bias = normal(random, i, o), normal(random, o)
    out = np.full((rows, o), 7, np.float32)
    affine(x, weights, bias, out, relu)
    expected = (x.astype(np.float64) @ weights + bias).astype(np.float64)
    close(out, np.where((expected < 0) & bool(relu), 0, expected), i)
    grad = np.full((i, o), 7, np.float32)
    weight_gradient(x, d, grad)
    close(grad, x.astype(np.float64).T @ d, rows)
    narrow = np.full((i, o), 7, np.float32)
    outer_narrow(x, d, np.empty(i * o, np.float32), narrow)
    np.testing.assert_array_equal(narrow, grad)
    below, panel = np.full((rows, i), 7, np.float32), np.empty(o * min(i, 32), np.float32)
    input_gradient(d, weights, panel, below, x, relu)
    expected = d.astype(np.float64) @ weights.T
    close(below, np.where((x <= 0) & bool(relu), 0, expected), o)
    turned = np.empty((o, i), np.float32)
    transpose(weights, turned)
    np.testing.assert_array_equal(turned, weights.T)
    sums = np.full(o, 7, np.float32)
    column_sums(d, sums)
    close(sums, d.astype(np.float64).sum(0), rows)
    assert total_squares(weights.reshape(-1)) == pytest.approx(float((weights**2).sum()), rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, i=SIZES, o=SIZES, seed=st.integers(0, 2**32 - 1))
def test_a_row_gives_the_same_bits_alone_and_among_others(
    rows: int, i: int, o: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x, weights, bias = normal(random, rows, i), normal(random, i, o), normal(random, o)
    together, alone = np.empty((rows, o), np.float32), np.empty((1, o), np.float32)
    affine(x, weights, bias, together, 1)
    for r in range(rows):
        affine(x[r : r + 1], weights, bias, alone, 1)
        np.testing.assert_array_equal(alone[0], together[r])


def test_a_packed_strip_gives_the_same_bits_as_the_factor_where_it_lies() -> None:
    random = np.random.default_rng(0)
    rows, i, o = PACKED_ROWS + 7, PACKED_DEPTH + 3, 2 * STRIP + 5
    x, weights, bias = normal(random, rows, i), normal(random, i, o), normal(random, o)
    packed, few = np.empty((rows, o), np.float32), np.empty((PACKED_ROWS - 1, o), np.float32)
    affine(x, weights, bias, packed, 1)
    affine(x[: PACKED_ROWS - 1], weights, bias, few, 1)
    close(packed, np.maximum(x.astype(np.float64) @ weights + bias, 0), i)
    np.testing.assert_array_equal(few, packed[: PACKED_ROWS - 1])
    grad = np.empty((rows, o), np.float32)
    turned = np.ascontiguousarray(x.T)
    weight_gradient(turned, weights, grad)
    close(grad, turned.astype(np.float64).T @ weights, i)


@pytest.mark.parametrize("o", [2, 40])
def test_nan_goes_through_relu_and_its_derivative(o: int) -> None:
    random = np.random.default_rng(0)
    x, weights, bias = normal(random, 9, 5), normal(random, 5, o), normal(random, o)
    x[4, 2] = np.nan
    out = np.empty((9, o), np.float32)
    affine(x, weights, bias, out, 1)
    assert np.isnan(out[4]).all()
    assert np.isfinite(np.delete(out, 4, axis=0)).all()
    d, below = normal(random, 9, o), np.empty((9, 5), np.float32)
    d[3, 1] = np.nan
    gate = np.ones((9, 5), np.float32)
    gate[3, 0] = 0
    input_gradient(d, weights, np.empty(5 * o, np.float32), below, gate, 1)
    assert below[3, 0] == 0
    assert np.isnan(below[3, 1:]).all()


def test_arrays_that_are_not_contiguous_float32_are_refused() -> None:
    x, bias, out = np.ones((4, 4), np.float32), np.ones(4, np.float32), np.ones((4, 4), np.float32)
    for wrong in (x.astype(np.float64), np.asfortranarray(x)):
        with pytest.raises(TypingError, match="C-contiguous float32"):
            affine(wrong, x, bias, out, 0)
    with pytest.raises(TypingError, match="C-contiguous float32"):
        transpose(x.T, out)
