"""Functions that are compiled as parts of others, for Python, or as separate functions
(`numba_internals`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pearl_devices.primitives.numba_internals import (
    ApartCompiler,
    Compiled,
    Intrinsic,
    PartCompiler,
    WholeCompiler,
    config,
)
from pearl_devices.primitives.separate_functions import separate

ONLY_CALLED = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {"pipeline_class": PartCompiler, **ONLY_CALLED}
"""Options of `overload` that make a function a part."""


def interpreted(function: Callable[..., Any]) -> bool:
    """Whether `function` stays a Python function because NUMBA_DISABLE_JIT is set, as in numba.
    Functions of a module with intrinsics are compiled anyway, because Python cannot call them."""
    kept = config.DISABLE_JIT  # type: ignore[attr-defined]
    return bool(kept) and not any(isinstance(v, Intrinsic) for v in function.__globals__.values())


def part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function like `numba.njit(**options)`; only compiled functions may call it."""

    def decorate(function: Callable[..., Any]) -> Any:
        if interpreted(function):
            return function
        return Compiled(function, options | ONLY_CALLED, PartCompiler)

    return decorate


class Whole(Compiled):
    """A compiled function that Python calls. Compiled functions contain its part."""

    def __init__(self, function: Any, part: Any, options: Mapping[str, Any]) -> None:
        super().__init__(function, options, WholeCompiler)
        self.part = part

    @property
    def _numba_type_(self) -> Any:
        return self.part._numba_type_


class SeparateFunction(Compiled):
    """A compiled function that Python and compiled functions call."""

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        super().__init__(function, options, ApartCompiler)

    def add_overload(self, cres: Any) -> None:
        of = self.py_func
        separate[cres.fndesc.mangled_name] = (of.__module__, of.__name__, cres.signature.args)
        super().add_overload(cres)
