"""Checks of argument values, and quotation of values in error texts."""

from __future__ import annotations

import math
from numbers import Integral, Real
from types import UnionType
from typing import TypeGuard

MOST = 1 << 53
"""Whole numbers up to this one are exact floats."""


LARGEST = 1e30
"""Upper limit of every quantity: seconds, bytes, joules, and their products."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number, finite and within the range of floats."""
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def explain_misfit(value: object, *, above: bool = False) -> str:
    """Return why `value` is no quantity, as `is …; it must be …`; empty if it is one.

    A quantity is a number from 0 to LARGEST. With `above` it is at least 1 / LARGEST, so that sums
    and quotients stay finite.
    """
    need = "finite and above 0" if above else "finite and at least 0"
    if is_number(value) and (value > 0 or (value == 0 and not above)):
        if value > LARGEST:
            need = f"at most {LARGEST:g}"
        elif above and value * LARGEST < 1:
            need = f"at least {1 / LARGEST:g}"
        else:
            return ""
    return f"is {quote(value)}; it must be {need}"


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is a whole number from -2^53 to 2^53; booleans are not."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
        return False
    return -MOST <= int(value) <= MOST


def is_names(value: object) -> TypeGuard[list[str] | tuple[str, ...]]:
    """Whether `value` is a list or tuple of text."""
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def check_type(name: str, value: object, kinds: type | UnionType, needed: str) -> list[str]:
    """Return the reason why an argument has the wrong type; empty if it is one of `kinds`.

    needed: the allowed values, in words.
    """
    return [] if isinstance(value, kinds) else [f"{name} is {quote(value)}; {needed} is needed"]


def quote(value: object) -> str:
    """Return `value` in at most 60 characters."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a huge number"
    try:
        text = repr(value)
    except ValueError:  # the value contains a huge number
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:56] + " ..."
