"""CUDA programs executed on the CPU, with a GPU's threads modelled by `sources/host_threads.h`.

Tests use it instead of a GPU: the same source, compiled by g++. It is slow.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pearl_devices.base import UnsupportedError
from pearl_devices.cache_folder import cache_folder, doubts
from pearl_devices.gpu.program import SOURCES, Program

OPTIONS = (
    "-std=c++17",
    "-Og",  # most programs have few launches, and -O2 compiles three times as long
    "-w",
    "-fPIC",
    "-shared",
    "-Wl,-Bsymbolic",  # a kernel may have the name of a function of the C library
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)
ADDRESS = ("-fsanitize=address",)
MISSING = 1
"""Status of a launch whose threads wait at a barrier for threads that never come."""


class DivergentBarrier(RuntimeError):
    """Some threads of a block wait at a barrier that others never reach."""


@cache
def load_library(program: Program) -> ctypes.CDLL:
    """Load the program as a library of functions `launch_KERNEL`, compiled once and cached.

    Raises:
        UnsupportedError: g++ is missing or rejects the program, or another user may have written
            the library.
    """
    return ctypes.CDLL(str(build_library(program)))


def build_library(program: Program, *, sanitize: bool = False) -> Path:
    """Compile the program if the cache has no library of it. Return the file of the library.

    sanitize: with AddressSanitizer, whose library must be loaded before Python.

    Raises:
        UnsupportedError: g++ is missing or refuses the program, or another user may have written
            into the cache.
    """
    header = SOURCES / "host_threads.h"
    entries = "".join(
        f'extern "C" int launch_{name}(const unsigned* grid, const unsigned* block, size_t shared, '
        f"void** args, unsigned order) {{ return host_threads::launch({name}, grid, block, shared, "
        "args, order); }\n"
        for name in program.kernels
    )
    text = f"{header.read_text(encoding='utf-8')}\n{program.text}\n{entries}"
    options = (*OPTIONS, *(ADDRESS if sanitize else ()))
    digest = sha256("\n".join((text, *options)).encode()).hexdigest()[:24]
    folder = _folder()
    library = folder / f"{Path(program.file).stem}-{digest}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, made = Path(scratch) / "program.cpp", Path(scratch) / "program.so"
        source.write_text(text, encoding="utf-8")
        try:
            ran = subprocess.run(
                [os.environ.get("CXX", "g++"), *options, str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        except OSError as error:
            raise UnsupportedError(
                f"{program.file}: the simulated GPU needs the compiler g++: {error}"
            ) from error
        if ran.returncode:
            raise UnsupportedError(f"{program.file}: g++ refuses it: {ran.stderr.strip()[:2000]}")
        made.replace(library)
    return library


def _folder() -> Path:
    """Return the folder of compiled libraries. Loading a library runs its code."""
    folder = (cache_folder() / "gpu-stand-in").resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why := doubts(folder):
        raise UnsupportedError(
            f"{folder}: {why}, and loading a library from this folder would run foreign code; set "
            "PEARL_CACHE_DIR to a folder that only you can write"
        )
    return folder


def launch(
    program: Program,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    shared_bytes: int = 0,
    order: int = 0,
) -> None:
    """Do one launch; it is complete on return.

    arguments: addresses of arrays (objects with `data_ptr()` or numpy arrays), int as int64, float
        as double.
    order: of the threads: 0 forwards, 1 backwards, else shuffled with this seed.
    Raises:
        DivergentBarrier: some threads wait at a barrier that others never reach.
    """
    values = [_value(a) for a in arguments]
    addresses = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
    )
    sizes = [(ctypes.c_uint * 3)(*(*given, 1, 1)[:3]) for given in (grid, block)]
    function = getattr(load_library(program), f"launch_{kernel}")
    status = function(*sizes, ctypes.c_size_t(shared_bytes), addresses, ctypes.c_uint(order))
    if status == MISSING:
        raise DivergentBarrier(f"{program.file}: threads of {kernel} wait for others for ever")
    if status:
        raise ValueError(f"{program.file}: {kernel} has no launch of {tuple(block)} threads")


def _value(argument: Any) -> Any:
    if isinstance(argument, bool | int):
        return ctypes.c_int64(argument)
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    if hasattr(argument, "data_ptr"):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_void_p(argument.ctypes.data)
