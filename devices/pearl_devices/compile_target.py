"""The processor that kernels are compiled for: this host's, or the one that numba's environment
variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name, as to hold a host to older instructions.

With a name alone numba keeps the host's features; set and empty, NUMBA_CPU_FEATURES leaves those
that the name implies.
"""

from __future__ import annotations

import os

NAME, FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


def held_to() -> str:
    """The variables as they are set, as `NAME=value`; empty where none is."""
    return " ".join(f"{name}={os.environ[name]}" for name in (NAME, FEATURES) if name in os.environ)
