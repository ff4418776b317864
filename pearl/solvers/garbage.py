"""The garbage collector during a solve: it runs rarely, because a solve leaves few cycles.

With the usual 700 new objects between two runs, the collector takes half of the time to plan 4,000
firings: it looks at the code of all loaded libraries again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NEW_OBJECTS = 100_000
"""New objects between two runs of the collector (assumed: about 20 MB)."""

_lock = Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds before each solve that goes on, of all threads."""


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Within this context the collector runs rarely; the last solve that ends restores its pace."""
    with _lock:
        before = gc.get_threshold()
        _before.append(before)
        if 0 < before[0] < NEW_OBJECTS:  # 0: somebody has switched the collector off
            gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        with _lock:
            first = _before[0]
            _before.pop()
            if not _before:
                gc.set_threshold(*first)
