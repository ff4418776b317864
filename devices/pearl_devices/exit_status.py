"""How a process has ended, in words."""

from __future__ import annotations

import signal


def describe_exit(status: int) -> str:
    """Describe an exit status as `subprocess` gives it: minus the number of a signal, which it
    names, or a status from 0 on."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.strsignal(-status) or "unknown"
    return f"signal {-status} ({name.lower()})"
