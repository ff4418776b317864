"""Time limit of planning, checked inside loops of any length.

`within` sets the limit, and `look` raises OutOfTimeError once it has passed. A caller that has a
plan by then catches the error and goes on with the plan.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")

STRIDE = 1024
"""Items of a long loop between two looks at the clock."""

_until: ContextVar[float] = ContextVar("until", default=math.inf)
_given_up: ContextVar[Event | None] = ContextVar("given_up", default=None)


class OutOfTimeError(Exception):
    """The time given has passed."""


def look() -> None:
    """Check the time limit.

    Raises:
        OutOfTimeError: the limit has passed, or the waiting thread gave up.
    """
    given_up = _given_up.get()
    if time.monotonic() > _until.get() or (given_up and given_up.is_set()):
        raise OutOfTimeError


def left_s() -> float:
    """Seconds until the limit, 0 at least; infinite where there is none."""
    return max(0.0, _until.get() - time.monotonic())


def beside(given_up: Event, call: Callable[..., T], *args: Any, **more: Any) -> Callable[[], T]:
    """A call for another thread, under the limit of this one and until `given_up` is set."""
    context = copy_context()
    context.run(_given_up.set, given_up)
    return lambda: context.run(call, *args, **more)


def watched(items: Iterable[T]) -> Iterator[T]:
    """The items, those that are added in the meantime too, with a look at the clock before every
    STRIDE of them."""
    for number, item in enumerate(items):
        if number % STRIDE == 0:
            look()
        yield item


def drained(queue: deque[T]) -> Iterator[T]:
    """The items of a queue from its front until it is empty, with a look at the clock likewise."""
    while queue:
        look()
        for _ in range(STRIDE):
            if queue:
                yield queue.popleft()


@contextmanager
def within(until: float) -> Iterator[None]:
    """Until then (`time.monotonic()` seconds) and no longer than is allowed already."""
    with extended(min(until, _until.get())):
        yield


@contextmanager
def extended(until: float) -> Iterator[None]:
    """Until then, also where less was allowed."""
    before = _until.set(until)
    try:
        yield
    finally:
        _until.reset(before)
