"""How native kernels are compiled and bound."""

from __future__ import annotations

import contextlib
import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import numba
from scipy.linalg import cython_blas

from pearl_devices.base import Call

fast = numba.njit(cache=True, nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")
"""Compiles arithmetic element by element. The numpy error model is what lets loops with a division
vectorise: with Python's, each division is followed by a check for zero. A product and a sum may
fuse, but no sum is reordered and no quotient or root approximated, so that a function gives the
same bits called alone and inlined into a fused kernel. Long sums spell out a fast order
(`nets.total`)."""

exact = numba.njit(cache=True, nogil=True, error_model="numpy")
"""Compiles arithmetic as written, not even fused: environments, the sum tree, random numbers."""


def bound(function: Any, *arguments: Any) -> Call:
    """A call of the compiled `function` on these arrays and numbers; compiles now, runs nothing."""
    function.compile(tuple(numba.typeof(argument) for argument in arguments))
    return partial(function, *arguments)


BLAS_THREADS = (
    "scipy_openblas_set_num_threads",  # the OpenBLAS in scipy's wheels
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)


def _one_blas_thread() -> None:
    """Tells the BLAS behind numba's `np.dot`, which is scipy's, to use one thread in this process.

    A native kernel is one core wide. OpenBLAS would split the products of 128 by 64 by 64 already,
    and take longer for it. An environment variable would come too late: the planner has
    loaded scipy by then. A BLAS without such a function is left as it is.
    """
    library = ctypes.CDLL(cython_blas.__file__)
    for name in BLAS_THREADS:
        with contextlib.suppress(AttributeError):
            getattr(library, name)(1)
            return


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


_one_blas_thread()
_drop_stale_code()
