"""Quantities: text with a unit → SI, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pearl.spec.units import DIMENSIONS, format_quantity, parse_quantity


@given(
    st.floats(min_value=0, allow_infinity=False, allow_nan=False), st.sampled_from([*DIMENSIONS])
)
def test_text_and_quantity_are_inverse(value: float, dimension: str) -> None:
    assert parse_quantity(format_quantity(value, dimension), dimension) == value


@given(st.text(max_size=80), st.sampled_from([*DIMENSIONS]))
def test_any_text_is_a_number_or_a_value_error(written: str, dimension: str) -> None:
    refusal = "for example"
    try:
        value = parse_quantity(written, dimension)
    except ValueError as error:
        value, refusal = 0.0, str(error)
    assert isinstance(value, float)
    assert "for example" in refusal


def test_every_example_is_read() -> None:
    for key, dimension in DIMENSIONS.items():
        assert parse_quantity(dimension.example, key) > 0
