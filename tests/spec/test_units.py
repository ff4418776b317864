"""Quantities: text with a unit → SI, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.spec.units import DIMENSIONS, dimension_of, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("given_value", "dimension", "message"),
    [
        (16, "w", "the unit is missing; a power carries its unit, for example 350 W"),
        ("16", "hz", "the unit is missing; a frequency carries its unit, for example 250 MHz"),
        (
            "16 gb/s",
            "bytes_per_s",
            "'gb/s' is no unit of bandwidth (did you mean GB/s?); "
            "a bandwidth carries its unit, for example 16 GB/s",
        ),
        ("2 mmin", "s", "'mmin' is no unit of time; a time carries its unit, for example 1 ms"),
        ("1e999 W", "w", "too large; a power carries its unit, for example 350 W"),
        ("fast", "w", "not a number with a unit; a power carries its unit, for example 350 W"),
        (True, "w", "a power carries its unit, for example 350 W"),
        (None, "w", "a power carries its unit, for example 350 W"),
    ],
)
def test_what_is_no_quantity_names_the_unit(
    given_value: object, dimension: str, message: str
) -> None:
    with pytest.raises(ValueError, match="unit") as caught:
        parse_quantity(given_value, dimension)
    assert str(caught.value) == message


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


def test_a_name_states_its_dimension() -> None:
    assert dimension_of("clock_hz") == "hz"
    assert dimension_of("ddr_bytes_per_s") == "bytes_per_s"
    assert dimension_of("ram_block_bits") == "bits"
    assert dimension_of("dsp") is None
    assert dimension_of("ram_blocks") is None
