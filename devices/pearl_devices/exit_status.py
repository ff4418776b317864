"""How a process has ended, in words."""

from __future__ import annotations

import signal
from contextlib import suppress


def describe_exit(status: int) -> str:
    """Describe an exit status as `subprocess` gives it: minus the number of a signal, which it
    names, or a status from 0 on."""
    if status >= 0:
        return f"exit status {status}"
    name = None
    with suppress(ValueError):  # there is no such signal
        name = signal.strsignal(-status)
    return f"signal {-status} ({(name or 'unknown').lower()})"
