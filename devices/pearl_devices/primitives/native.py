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
from numba.extending import overload, typeof_impl

from pearl_devices.base import Call
from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.numba_internals import CPUDispatcher, from_dtype, map_layout
from pearl_devices.primitives.parts import PART, part

LEAN: dict[str, Any] = {"no_cfunc_wrapper": True, "_nrt": False}
"""Options that leave out two things. The entry for C takes a tenth of the compile time, and nothing
uses it. Arrays need no reference counts, because the caller in Python keeps every array alive
during the call. A function that makes or returns an array needs `COUNTED`, or numba refuses it."""

COUNTED: dict[str, Any] = {"_nrt": True}
"""Options that count references to arrays. Arrays that `LEAN` code passes on have no count."""

ELEMENTWISE: dict[str, Any] = {
    **LEAN,
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
}

fast = compiled(**ELEMENTWISE)
"""Compile arithmetic element by element.

With numpy's error model, loops with a division vectorise; with Python's, a check for zero follows
each division. No sum is reordered, and no quotient or root is approximated. A product and a sum
fuse only where the source says so (`fused.multiply_add`), because LLVM chooses by the processor. So
a function computes the same bits in a separate call and inlined into a fused kernel, and on every
processor with fused multiply-add. Long sums are written in a fast order (`nets.total`)."""

fast_apart = compiled(apart=True, **ELEMENTWISE)
"""As `fast`, for a function of some microseconds that several functions call. Its machine code is
generated once. The code of a `fast` function is generated again with each of its callers."""

fast_counted = compiled(**(ELEMENTWISE | COUNTED))
"""As `fast`, for a function that returns an array."""

fast_apart_counted = compiled(apart=True, **(ELEMENTWISE | COUNTED))
"""As `fast_apart`, for a function that returns an array."""

inner = part(**ELEMENTWISE)
"""As `fast`, for functions that are defined inside other functions and that only compiled code
calls. The cached code of their callers contains them; they have no cache of their own."""

inner_counted = part(**(ELEMENTWISE | COUNTED))
"""As `inner`, for a function that makes an array."""


def rename(name: str, function: Any) -> Any:
    """Give a function that is defined inside another function the name of a module's own one.

    Symbols of machine code and files of the cache have this name. So it must be the only function
    of that name in its module.
    """
    function.__name__ = function.__qualname__ = name
    return function


def pick_by_action(discrete: Any, continuous: Any, factored: Any) -> Any:
    """Return a function for compiled callers that is one of three functions.

    The compiler chooses by the type of the first argument, the actions: `discrete` for one whole
    number an environment, `factored` for several, else `continuous`. All take the same arguments.
    """

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


def pick_by_bytes(packed: Any, plain: Any) -> Any:
    """Return a function for compiled callers: `packed` if its first argument is an array of uint8,
    else `plain`. Both take the same arguments."""

    def choice(array, *rest):
        return choose(numba.typeof(array), *rest)(array, *rest)

    def choose(array, *rest):
        chosen = packed if array.dtype == numba.types.uint8 else plain

        def call(array, *rest):
            return chosen(array, *rest)

        return call

    options: Any = ELEMENTWISE | PART
    overload(choice, jit_options=options)(choose)
    return choice


def unless_none(function: Any) -> Any:
    """Return a function for compiled callers: `function`, or False if its first argument is None.

    With None, nothing of `function` is compiled.
    """

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
    """Return numba's type of an array without numba's test for masked arrays.

    That test imports `numpy.ma`, which takes a fifteenth of a start.
    """
    if type(value) is np.ndarray:
        with contextlib.suppress(NumbaNotImplementedError):
            kind, layout = from_dtype(value.dtype), map_layout(value)
            return numba.types.Array(kind, value.ndim, layout, readonly=not value.flags.writeable)
    return _of_any_array(value, context)


_in_parts: ContextVar[bool] = ContextVar("in parts", default=False)


def bind_call(function: Any, *arguments: Any) -> Call:
    """Compile `function` for these arrays and numbers; return a call of it without arguments."""
    if isinstance(function, CPUDispatcher) and not _in_parts.get():
        function.compile(tuple(numba.typeof(argument) for argument in arguments))
    return partial(function, *arguments)


@contextlib.contextmanager
def parts_only() -> Iterator[None]:
    """Within this context, `bind_call` compiles nothing: one fused function takes all the
    arguments."""
    before = _in_parts.set(True)
    try:
        yield
    finally:
        _in_parts.reset(before)
