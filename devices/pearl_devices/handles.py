"""File descriptors with high numbers.

A new file gets the lowest free number. If code of the user closes all low numbers, a number that a
run still uses then names another file: the run would read, write and close the wrong one, and wait
for ever. A high number is not given away again: its use is an error that says so.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

LEAST = 600
"""Least number of a handle that was moved; a process may have 1,024 by default."""


def high(handle: int) -> int:
    """Return another number of a file and close this one; a low number if there is no high one.

    Raises:
        OSError: there are too many files.
    """
    try:
        for least in (LEAST, 3):
            with suppress(OSError):
                return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, least)
        return os.dup(handle)
    finally:
        os.close(handle)
