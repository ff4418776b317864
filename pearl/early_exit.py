"""Code of the user that ends the process: `os._exit(0)` would say that all is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from pearl.waits import say

ENDED = 1
"""The status of a process that ended early."""


@contextmanager
def ending_with_an_error() -> Iterator[None]:
    """Within this context, `os._exit(0)` ends this process with `ENDED`, and a sentence.

    Processes that the code forks end as they like. `_exit` of C cannot be changed.
    """
    before, process = os._exit, os.getpid()

    def end(status: int) -> NoReturn:
        if status or os.getpid() != process:
            before(status)
        say(f"code of the user called os._exit(0) before the end; the exit status is {ENDED}")
        before(ENDED)

    os._exit = end
    try:
        yield
    finally:
        os._exit = before
