"""Types of options, each with its allowed values and the sentence about them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
)

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of every class of options: no other keys, and numbers are finite."""

MODULE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
"""The path of a module inside a package."""

CALLABLE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
"""`module:callable`."""


def _ratio(given: object) -> Fraction:
    """A replay ratio: a whole number, a number, or text such as '1/4'."""
    allowed = (
        "a number above 0 such as 1, 0.25 or '1/4', with numerator and denominator at most 1000"
    )
    if isinstance(given, bool) or not isinstance(given, str | int | float | Fraction):
        raise ValueError(allowed)
    try:
        # str() of a float first: 0.1 means 1/10, not the nearest binary fraction.
        ratio = Fraction(str(given)) if len(str(given)) <= 40 else None
    except (ValueError, ZeroDivisionError):
        ratio = None
    if ratio is None or not (ratio > 0 and max(ratio.as_integer_ratio()) <= 1000):
        raise ValueError(allowed)
    return ratio


def _argument(given: object) -> str | int | float | bool:
    if not isinstance(given, str | int | float | bool):
        raise ValueError("text, a number, or true or false")
    return given


def _callable(given: object) -> str:
    if not isinstance(given, str) or not CALLABLE.fullmatch(given):
        raise ValueError("module:callable, such as my_package.networks:cnn")
    return given


def _bounds(given: object) -> tuple[float, ...]:
    numbers = given if isinstance(given, list | tuple) else [given]
    whole = [float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
    if not numbers or len(whole) < len(numbers):
        raise ValueError("a number, or a list of one number per action component")
    return tuple(whole)


Ratio = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(lambda r: r.numerator if r.denominator == 1 else str(r)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": "^[0-9.]+(/[0-9]+)?$"},
            ]
        }
    ),
]
Argument = Annotated[
    Any, PlainValidator(_argument), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
Bounds = Annotated[
    tuple[float, ...],
    PlainValidator(_bounds),
    PlainSerializer(list),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}),
]
Callable = Annotated[
    str, PlainValidator(_callable), WithJsonSchema({"type": "string", "pattern": CALLABLE.pattern})
]
Width = Annotated[StrictInt, Field(ge=1, le=65536)]
Hidden = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
Choices = Annotated[
    tuple[Annotated[StrictInt, Field(ge=1, le=10**6)], ...], Field(min_length=1, max_length=4096)
]
Shape = Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]
Rate = Annotated[StrictFloat, Field(gt=0, le=1)]
Share = Annotated[StrictFloat, Field(ge=0, le=1)]
Weight = Annotated[StrictFloat, Field(ge=0, le=1e3)]
"""Weight of one part of a loss."""
Limit = Annotated[StrictFloat, Field(ge=0, le=1e6)]
"""Limit beyond which something is clipped; 0 is off."""
OfHalfRange = Annotated[StrictFloat, Field(ge=0, le=10)]
"""A share of half the range of an action."""
EnvSteps = Annotated[StrictInt, Field(ge=1, le=10**12)]
