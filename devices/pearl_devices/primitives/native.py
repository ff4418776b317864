"""How native kernels are compiled and bound."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import numba

from pearl_devices.base import Call

ELEMENTWISE: dict[str, Any] = {
    "nogil": True,
    "fastmath": {"contract", "nsz"},
    "error_model": "numpy",
}

fast = numba.njit(cache=True, **ELEMENTWISE)
"""Compiles arithmetic element by element. The numpy error model is what lets loops with a division
vectorise: with Python's, each division is followed by a check for zero. A product and a sum may
fuse, but no sum is reordered and no quotient or root approximated, so that a function gives the
same bits called alone and inlined into a fused kernel. Long sums spell out a fast order
(`nets.total`)."""

merged = numba.njit(inline="always", **ELEMENTWISE)
"""As `fast`, for a long function with one caller: it is made part of the caller, where compiling it
by itself first would take as long again."""

exact = numba.njit(cache=True, nogil=True, error_model="numpy")
"""Compiles arithmetic as written, not even fused: environments, the sum tree, random numbers."""


inner = numba.njit(nogil=True, error_model="numpy")
"""As `exact`, for functions made inside others: they are compiled into their callers' cached code,
and a cache of their own would never find them again."""


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
