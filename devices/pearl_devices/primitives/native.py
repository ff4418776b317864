"""How native kernels are compiled and bound."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import numba

from pearl_devices.base import Call

fast = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
"""Compiles arithmetic that may be reordered. The numpy error model is what lets loops with a division
vectorise: with Python's, each division is followed by a check for zero."""

exact = numba.njit(cache=True, nogil=True, error_model="numpy")
"""Compiles arithmetic whose order is part of the result: environments, the sum tree, random numbers."""


def bound(function: Any, *arguments: Any) -> Call:
    """A call of the compiled `function` on these arrays and numbers; compiles now, runs nothing."""
    function.compile(tuple(numba.typeof(argument) for argument in arguments))
    return partial(function, *arguments)


def _drop_stale_code() -> None:
    """Remove cached machine code older than any source here.

    numba's cache looks only at the file of a function, not at those of the functions it calls.
    """
    folder = Path(__file__).parent
    newest_s = max(source.stat().st_mtime for source in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < newest_s:
                index.unlink()


_drop_stale_code()
