"""How native kernels are compiled and bound."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaNotImplementedError
from numba.core.registry import CPUDispatcher
from numba.extending import overload, typeof_impl
from numba.np.numpy_support import from_dtype, map_layout

from pearl_devices.base import Call
from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.parts import PART, part

LEAN: dict[str, Any] = {"no_cfunc_wrapper": True, "_nrt": False}
"""Leaves out the way in for C, which nothing here uses and which takes a tenth of the compile time,
and the counting of references to arrays: the caller in Python holds every array as long as the call
lasts. A function that makes or returns an array counts (`COUNTED`); numba refuses one that does not
say so."""

COUNTED: dict[str, Any] = {"_nrt": True}
"""Counts references to arrays. Arrays that came through `LEAN` code have no count."""

ELEMENTWISE: dict[str, Any] = {
    **LEAN,
    "nogil": True,
    "fastmath": {"contract", "nsz"},
    "error_model": "numpy",
}

fast = compiled(**ELEMENTWISE)
"""Compiles arithmetic element by element. The numpy error model is what lets loops with a division
vectorise: with Python's, each division is followed by a check for zero. A product and a sum may
fuse, but no sum is reordered and no quotient or root approximated, so that a function gives the
same bits called alone and inlined into a fused kernel. Long sums spell out a fast order
(`nets.total`)."""

fast_apart = compiled(apart=True, **ELEMENTWISE)
"""As `fast`, for a function of some microseconds that several others call: they call it, where the
code of a `fast` one becomes a part of theirs and is optimised and generated with each."""

fast_counted = compiled(**(ELEMENTWISE | COUNTED))
"""As `fast`, for a function that returns an array."""

fast_apart_counted = compiled(apart=True, **(ELEMENTWISE | COUNTED))
"""As `fast_apart`, likewise."""

exact = compiled(nogil=True, fastmath=False, error_model="numpy", **LEAN)
"""Compiles arithmetic as written, not even fused: environments, the sum tree, random numbers. False
is said because a function that says nothing takes its caller's."""


exact_apart = compiled(apart=True, nogil=True, fastmath=False, error_model="numpy", **LEAN)
"""As `exact`, likewise."""

INNER: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}
inner = part(**INNER, **LEAN)
"""As `exact`, for functions made inside others and called by compiled code only: they are compiled
into their callers' cached code, and a cache of their own would never find them again."""

inner_counted = part(**INNER, **COUNTED)
"""As `inner`, for a function that makes an array."""


def named(name: str, function: Any) -> Any:
    """Give a function that is defined inside another function the name of a module's own one.

    Symbols of machine code and files of the cache have this name. So it must be the only function
    of that name in its module.
    """
    function.__name__ = function.__qualname__ = name
    return function


def by_action(discrete: Any, continuous: Any, factored: Any) -> Any:
    """A function for compiled callers that is one of these, chosen when they are compiled by the
    type of its first argument, actions: `discrete` for whole numbers, one an environment,
    `factored` for several, else `continuous`. All take the same arguments."""

    def choice(action, *rest):
        return choose(numba.typeof(action), *rest)(action, *rest)

    def choose(action, *rest):
        whole = factored if action.ndim > 1 else discrete
        chosen = whole if isinstance(action.dtype, numba.types.Integer) else continuous

        def call(action, *rest):
            return chosen(action, *rest)

        return call

    options: Any = ELEMENTWISE | PART
    overload(choice, jit_options=options)(choose)
    return choice


def where_asked(function: Any) -> Any:
    """A function for compiled callers that is `function` where its first argument is an array, and
    False where that is None: then nothing of it is compiled."""

    def choice(asked, *rest):
        return choose(numba.typeof(asked), *rest)(asked, *rest)

    def choose(asked, *rest):
        if isinstance(asked, numba.types.NoneType):
            return lambda asked, *rest: False
        return lambda asked, *rest: function(asked, *rest)

    options: Any = ELEMENTWISE | PART
    overload(choice, jit_options=options)(choose)
    return choice


_of_any_array = typeof_impl.dispatch(np.ndarray)


@typeof_impl.register(np.ndarray)
def _of_array(value: npt.NDArray[Any], context: Any) -> Any:
    """The type of an array as numba finds it, which asks first whether it is a masked one: that
    imports `numpy.ma`, a fifteenth of a start."""
    if type(value) is np.ndarray:
        with contextlib.suppress(NumbaNotImplementedError):
            kind, layout = from_dtype(value.dtype), map_layout(value)
            return numba.types.Array(kind, value.ndim, layout, readonly=not value.flags.writeable)
    return _of_any_array(value, context)


_in_parts: ContextVar[bool] = ContextVar("in parts", default=False)


def bound(function: Any, *arguments: Any) -> Call:
    """A call of the compiled `function` on these arrays and numbers; compiles now, runs nothing."""
    if isinstance(function, CPUDispatcher) and not _in_parts.get():
        function.compile(tuple(numba.typeof(argument) for argument in arguments))
    return partial(function, *arguments)


@contextlib.contextmanager
def parts_only() -> Iterator[None]:
    """Within it `bound` compiles nothing: the functions are parts of another one, which takes their
    arguments."""
    before = _in_parts.set(True)
    try:
        yield
    finally:
        _in_parts.reset(before)
