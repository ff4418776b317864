"""How a compiled function contains other functions: as inlined parts, or as calls.

numba optimises a function together with all functions that it calls, and generates machine code. It
repeats both for each caller, and for the callers of those. Here a *part* is only typed and stored
as LLVM code; functions that contain the part may inline it. A *separate* function is optimised with
its parts and generated once; others call it by its symbol, and it is never inlined. A function that
Python calls is also generated once, with its parts.

Cached machine code calls functions by symbol, so these must exist first: `needs` lists them.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from llvmlite import binding
from numba import types
from numba.core import compiler, config
from numba.core.bytecode import FunctionIdentity
from numba.core.codegen import JITCodeLibrary
from numba.core.environment import lookup_environment
from numba.core.extending import _Intrinsic
from numba.core.funcdesc import default_mangler
from numba.core.registry import CPUDispatcher
from numba.core.untyped_passes import ExtractByteCode

TOKEN = secrets.token_hex(4)
"""Marks the names of this process's parts. numba numbers functions from 1 in each process, so
closures of one function in two processes' cached code could otherwise share a name."""

ADDRESS, ENVIRONMENT = "numba.dynamic.globals", "_ZN08NumbaEnv"
"""numba's prefixes of process addresses in code, and of function environments."""

CALLED_FROM_PYTHON = "_ZN7cpython"
"""numba's prefix of the wrapper that converts arguments from Python and calls a function."""

APART = "apart"
"""Marks the symbols of separate functions."""

Need = tuple[str, str, tuple[Any, ...]]
"""A separate function: its module and name, and the types of its arguments."""

_apart: dict[str, Need] = {}
"""Symbol → separate function, of those compiled or loaded in this process."""


def needs(module: Any) -> dict[str, Need]:
    """Return the separate functions that the code of a module calls, by symbol."""
    declared = (f.name for f in module.functions if f.is_declaration)
    return {name: _apart[name] for name in declared if name in _apart}


def provide(needed: Mapping[str, Need]) -> None:
    """Compile or load these functions, so that this process has their machine code.

    Raises:
        LookupError: a function has another symbol now.
    """
    for symbol, (module, name, kinds) in needed.items():
        getattr(import_module(module), name).compile(kinds)
        if symbol not in _apart:
            raise LookupError(symbol)


def _symbol(name: str, types: Any, *, abi_tags: Any = (), uid: Any = None) -> str:
    """Symbols of separate functions: as numba's, without the text of options, whose order differs
    between processes."""
    return str(default_mangler(name, types, abi_tags=() if uid == APART else abi_tags, uid=uid))


class PartLibrary(JITCodeLibrary):
    """The LLVM code of a part and of its parts, hardly optimised, without machine code."""

    @classmethod
    def read(cls, codegen: Any, kept: Any) -> PartLibrary:
        """Return the library that `serialize_using_object_code` stored."""
        name, code, needed = kept
        provide(needed)
        self = cls(codegen, name)
        self._final_module = binding.parse_bitcode(code)
        self._finalized = True
        return self

    def serialize_using_object_code(self) -> Any:
        module = self._get_module_for_linking()
        return self.name, module.as_bitcode(), needs(module)

    def _optimize_functions(self, ll_module: Any) -> None:
        """Remove variables that numba writes and nobody reads, such as addresses of called
        functions."""
        ll_module.data_layout = self._codegen._data_layout
        passes = binding.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_dead_code_elimination_pass()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(ll_module, self._codegen._pass_builder())

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._final_module.verify()
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> PartLibrary:
        """numba asks this library for the function's environment, which has no address yet."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: the function that contains this part sets the environment."""


class ApartLibrary(JITCodeLibrary):
    """Machine code that others call by its symbol; it is not linked into their code."""

    @classmethod
    def read(cls, codegen: Any, kept: Any) -> ApartLibrary:
        """Return the library that `serialize_using_object_code` stored."""
        name, code, symbols, needed = kept
        provide(needed)
        self = cls(codegen, name)
        self.enable_object_caching()
        self._set_compiled_object(code)
        self._finalize_final_module()
        codegen._engine._defined_symbols |= symbols
        return self

    def serialize_using_object_code(self) -> Any:
        module = self._final_module
        symbols = {f.name for f in module.functions if not f.is_declaration}
        return self.name, self._get_compiled_object(), symbols, needs(module)

    def _optimize_functions(self, ll_module: Any) -> None:
        """Optimise as numba does, except the wrapper that converts arguments from Python: there
        only variables become registers. The wrapper runs once, straight through, and grows with the
        arrays of a call; optimising it took longer than optimising the function."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration and function.name.startswith(CALLED_FROM_PYTHON):
                passes = binding.create_new_function_pass_manager()
                passes.add_sroa_pass()
                passes.run(function, self._codegen._pass_builder())
                for attribute in ("noinline", "optnone"):
                    function.add_function_attribute(attribute)
        super()._optimize_functions(ll_module)

    def _get_module_for_linking(self) -> Any:
        return binding.parse_assembly("")

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        names = [v.name for v in self._final_module.global_variables if not v.is_declaration]
        for name in names:
            env = lookup_environment(name) if name.startswith(ENVIRONMENT) else None
            if env is not None:  # the environment of a part
                codegen: Any = self._codegen
                codegen.set_env(name, env)


class _Compiler(compiler.Compiler):
    """numba's pipeline that compiles into one of the libraries."""

    library: type[JITCodeLibrary]

    def named(self, function: Any) -> str:
        """A mark in the function's symbol that distinguishes it from others of its name and
        types."""
        return f"{function.unique_id}x{TOKEN}"

    def compile_extra(self, func: Any) -> Any:
        of: Any = FunctionIdentity.from_function(func)
        of.unique_id, self.state.func_id = self.named(of), of
        self.state.library = self.library(self.state.targetctx.codegen(), of.func_qualname)
        self.state.library.enable_object_caching()
        ExtractByteCode().run_pass(self.state)
        self.state.lifted, self.state.lifted_from = (), None
        return self._compile_bytecode()


class PartCompiler(_Compiler):
    """Compiles parts: functions that others inline."""

    library = PartLibrary


class WholeCompiler(_Compiler):
    """The compiler of functions that Python calls."""

    library = ApartLibrary


class ApartCompiler(_Compiler):
    """The compiler of functions that Python and compiled code call. A function of a module has the
    same symbol in every process."""

    library = ApartLibrary

    def named(self, function: Any) -> str:
        self.state.targetctx.mangler = _symbol  # on the context copied for this function
        return APART


ONLY_CALLED = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {"pipeline_class": PartCompiler, **ONLY_CALLED}
"""Options of `overload` that make a function a part."""


class _Compiled(CPUDispatcher):
    """A function that is compiled once per argument types; literal numbers have the type of other
    numbers."""

    def __init__(
        self, function: Any, options: Mapping[str, Any], pipeline: type[_Compiler]
    ) -> None:
        given = {"nopython": True, "boundscheck": None, **options}
        super().__init__(function, {}, given, pipeline)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(map(types.unliteral, args)), plain)

    def compile(self, sig: Any) -> Any:
        """Compile as numba does, with garbage collection off: the compiler's objects live until the
        end, and searching them in vain took a sixth of the time. Numba's own functions are compiled
        even if NUMBA_DISABLE_JIT is set."""
        collecting, kept = gc.isenabled(), config.DISABLE_JIT  # type: ignore[attr-defined]
        gc.disable()
        config.DISABLE_JIT = 0  # type: ignore[attr-defined]
        try:
            return super().compile(sig)
        finally:
            config.DISABLE_JIT = kept  # type: ignore[attr-defined]
            if collecting:
                gc.enable()


def interpreted(function: Callable[..., Any]) -> bool:
    """Whether `function` stays a Python function because NUMBA_DISABLE_JIT is set, as in numba.
    Functions of a module with intrinsics are compiled anyway, because Python cannot call them."""
    kept = config.DISABLE_JIT  # type: ignore[attr-defined]
    return bool(kept) and not any(isinstance(v, _Intrinsic) for v in function.__globals__.values())


def part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function like `numba.njit(**options)`; only compiled functions may call it."""

    def decorate(function: Callable[..., Any]) -> Any:
        if interpreted(function):
            return function
        return _Compiled(function, options | ONLY_CALLED, PartCompiler)

    return decorate


class Whole(_Compiled):
    """A compiled function that Python calls. Compiled functions contain its part."""

    def __init__(self, function: Any, part: Any, options: Mapping[str, Any]) -> None:
        super().__init__(function, options, WholeCompiler)
        self.part = part

    @property
    def _numba_type_(self) -> Any:
        return self.part._numba_type_


class SeparateFunction(_Compiled):
    """A compiled function that Python and compiled functions call."""

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        super().__init__(function, options, ApartCompiler)

    def add_overload(self, cres: Any) -> None:
        of = self.py_func
        _apart[cres.fndesc.mangled_name] = (of.__module__, of.__name__, cres.signature.args)
        super().add_overload(cres)
