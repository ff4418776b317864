"""Time limit of planning, checked inside loops of any length.

`within` sets the limit, and `look` raises OutOfTimeError once it has passed. A caller that has a
plan at that time catches the error and continues with the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

STRIDE = 1024
"""Items of a long loop between two checks of the clock."""

_until: ContextVar[float] = ContextVar("until", default=math.inf)


class OutOfTimeError(Exception):
    """The time limit has passed."""


def look() -> None:
    """Check the time limit.

    Raises:
        OutOfTimeError: the limit has passed.
    """
    if time.monotonic() > _until.get():
        raise OutOfTimeError


def left_s() -> float:
    """Return the seconds until the limit, at least 0; infinite if there is no limit."""
    return max(0.0, _until.get() - time.monotonic())


def watched(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, including items added in the meantime; check the clock before every STRIDE
    of them."""
    for number, item in enumerate(items):
        if number % STRIDE == 0:
            look()
        yield item


@contextmanager
def within(until: float) -> Iterator[None]:
    """Within this context, the limit is at most `until` (`time.monotonic()` seconds)."""
    with extended(min(until, _until.get())):
        yield


@contextmanager
def extended(until: float) -> Iterator[None]:
    """Within this context, the limit is `until`, even if it was earlier."""
    before = _until.set(until)
    try:
        yield
    finally:
        _until.reset(before)
