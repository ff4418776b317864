"""What PEARL uses of numba that numba does not promise: its compiler, code libraries and cache.

Any release may change these names, so only releases that were tried are allowed.

A compiled function contains other functions as inlined parts, or as calls.

numba optimises a function together with all functions that it calls, and generates machine code. It
repeats both for each caller, and for the callers of those. Here a *part* is only typed and stored
as LLVM code; functions that contain the part may inline it. A *separate* function is optimised with
its parts and generated once; others call it by its symbol, and it is never inlined. A function that
Python calls is also generated once, with its parts.

Cached machine code calls functions by symbol, so these must exist first: `needs` lists them.
"""

# ruff: noqa: E402
# The names below may be missing from other releases: the release is checked first.

from __future__ import annotations

import numba

from pearl_devices.base import UnsupportedError

LEAST, BELOW = (0, 67), (0, 69)
"""The first release of numba that is known to work, and the first that was not tried."""


def check_release(release: str) -> None:
    """Check that this release of numba is known to work.

    Raises:
        UnsupportedError: it is not.
    """
    number = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    if not LEAST <= number < BELOW:
        least, below = (".".join(map(str, each)) for each in (LEAST, BELOW))
        raise UnsupportedError(
            f"numba {release} is not known to work; install another: "
            f"pip install 'numba>={least},<{below}'"
        )


check_release(numba.__version__)

import gc
import io
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from llvmlite import binding
from numba import types
from numba.core import compiler, config
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
)
from numba.core.cgutils import get_or_insert_function
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.compiler import compile_result
from numba.core.environment import lookup_environment
from numba.core.extending import _Intrinsic as Intrinsic
from numba.core.funcdesc import default_mangler
from numba.core.registry import CPUDispatcher
from numba.core.runtime.nrt import rtsys
from numba.core.untyped_passes import ExtractByteCode
from numba.np.arrayobj import make_array
from numba.np.numpy_support import from_dtype, map_layout

from pearl_devices.primitives.separate_functions import needs, provide

__all__ = [  # for the other modules
    "CPUDispatcher", "Intrinsic", "config", "from_dtype", "get_host_cpu_features",
    "get_or_insert_function", "make_array", "map_layout",
]  # fmt: skip

TOKEN = secrets.token_hex(4)
"""Marks the names of this process's parts. numba numbers functions from 1 in each process, so
closures of one function in two processes' cached code could otherwise share a name."""

ADDRESS, ENVIRONMENT = "numba.dynamic.globals", "_ZN08NumbaEnv"
"""numba's prefixes of process addresses in code, and of function environments."""

CALLED_FROM_PYTHON = "_ZN7cpython"
"""numba's prefix of the wrapper that converts arguments from Python and calls a function."""

APART = "apart"
"""Marks the symbols of separate functions."""


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


class Compiled(CPUDispatcher):
    """A function that is compiled once per argument types; literal numbers have the type of other
    numbers."""

    def __init__(
        self, function: Any, options: Mapping[str, Any], pipeline: type[_Compiler]
    ) -> None:
        given = {"nopython": True, "boundscheck": None, **options}
        super().__init__(function, {}, given, pipeline)

    def keep_in(self, cache: CodeCache) -> None:
        """Load code from this cache, and save what is compiled there."""
        self._cache = cache

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


class _Locator(InTreeCacheLocator):
    """numba's cache locator, of a given folder."""

    def __init__(self, function: Any, file: str, folder: Path) -> None:
        super().__init__(function, file)
        self._cache_path = str(folder)


class _Files(IndexDataCacheFile):
    """numba's files of one function, each with a checksum at its end.

    A cut or damaged file counts as missing. Every entry contains its signature, because two
    processes that compile two signatures at the same time may give both the same number.
    """

    def load(self, key: Any) -> Any:
        try:
            of, data = super().load(key) or (None, None)
        except Exception:  # unpickling damaged bytes may raise anything
            return None
        return data if of == key else None

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def _load_index(self) -> Any:
        try:
            _check(self._index_path)
            return super()._load_index()
        except Exception:  # as above, or the file is missing
            return {}

    def _load_data(self, name: str) -> Any:
        _check(self._data_path(name))
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        whole = io.BytesIO()
        yield whole
        data = whole.getvalue()
        with super()._open_for_write(filepath) as file:
            file.write(data + _checksum(data))


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def _check(path: str) -> None:
    data = Path(path).read_bytes()
    if _checksum(data[:-4]) != data[-4:]:
        raise ValueError(f"{path} is damaged")


class _Results(CompileResultCacheImpl):
    """Machine code of whole and separate functions in a folder."""

    library: type[PartLibrary | ApartLibrary] = ApartLibrary

    def __init__(self, function: Any, folder: Path) -> None:
        locate = partial(_Locator, folder=folder)
        self._locator_classes: Any = [SimpleNamespace(from_function=locate)]
        super().__init__(function)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        library, fndesc, env, signature, _, _, annotation, reload_init, envs = payload
        read = self.library.read(target_context.codegen(), library)
        found = compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=read,
            environment=env,
            entry_point=target_context.get_executable(read, fndesc, env),
            fndesc=fndesc,
            type_annotation=annotation,
            signature=signature,
            objectmode=False,
            reload_init=reload_init,
            referenced_envs=envs,
        )
        for each in envs:
            read.codegen.set_env(each.env_name, each)
        return found


class _PartResults(_Results):
    """LLVM code of parts in a folder."""

    library = PartLibrary

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"part.{super().get_filename_base(fullname, abiflags)}"


class CodeCache(FunctionCache):
    """The compiled code of one function in a folder that stands for its sources."""

    def __init__(self, function: Any, folder: Path, *, parts: bool) -> None:
        self._impl_class: Any = partial(_PartResults if parts else _Results, folder=folder)
        super().__init__(function)
        self._cache_file = _Files(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Return numba's key without its hashes of the function.

        The folder stands for the source of the function. The hash of a closure would be another one
        in every process, because it contains the numbers that numba gives to compiled functions.
        """
        return sig, codegen.magic_tuple()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature; None if there is none.

        numba's method first imports everything that the compiler may need, which takes longer than
        loading machine code.
        """
        rtsys.initialize(target_context)
        with suppress(LookupError):  # a called function has changed: compile again
            return self._load_overload(sig, target_context)
        return None
