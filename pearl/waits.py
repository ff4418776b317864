"""Waits that name themselves: what has not answered for `NAMED_S` is said on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NAMED_S = 30.0
"""Seconds without an answer after which an environment, a process or a host is named."""


def say(text: str) -> None:
    """Write a line to standard error, if there is one."""
    if sys.stderr is not None:
        print(f"pearl: {text}", file=sys.stderr, flush=True)


@contextmanager
def naming(what: str, then: str) -> Iterator[None]:
    """Within this context, say after `NAMED_S` what the wait is for.

    what: the thing that has not answered.
    then: what happens next.
    """
    text = f"{what} has not answered for {NAMED_S:g} s; {then}"
    timer = threading.Timer(NAMED_S, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
