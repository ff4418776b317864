"""The processor that kernels are compiled for: this host's, or the one that numba's environment
variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name, for example to use older instructions only.

With a name alone, numba keeps the host's features. If NUMBA_CPU_FEATURES is set and empty, numba
uses the features that the name implies.
"""

from __future__ import annotations

import os

NAME, FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


def target_variables() -> str:
    """The variables that are set, as `NAME=value`; empty if none is set."""
    return " ".join(f"{name}={os.environ[name]}" for name in (NAME, FEATURES) if name in os.environ)
