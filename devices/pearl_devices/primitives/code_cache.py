"""Cache of machine code between processes, so that a kernel is compiled once.

numba's own cache knows the source file of a function, but not the files of the functions that it
calls. Here a digest names the folder: of every file that machine code may come from, of the
compiler and of the processor. So PEARL never loads code of other sources. The folder is below
NUMBA_CACHE_DIR if that is set, else in the user's cache folder. The files are pickles, so PEARL
does not read a folder that another user can write to.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import getfile
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding

from pearl_devices.cache_folder import cache_folder, doubts
from pearl_devices.compile_target import target_variables
from pearl_devices.primitives.numba_internals import CodeCache
from pearl_devices.primitives.parts import SeparateFunction, Whole, interpreted, part
from pearl_devices.system import host_system

OWN = "pearl_devices"
PACKAGES = (OWN, "pearl_estimators", "pearl")
USED_FOLDERS = ("primitives", "kernels", "system")
USED_FILES = frozenset(
    [
        "base.py",
        "buffers.py",
        "cache_folder.py",
        "compile_target.py",
        "cpu.py",
        "device_kind.py",
        "extras.py",
        "validation.py",
        "kernel.py",
        "masks.py",
        "user_imports.py",
        "torch_threads.py",
    ]
)
"""The kernels, and the modules of `OWN` that they import directly or indirectly, because constants
of those modules become machine code. Tests follow the imports and name a missing file."""

FOLDER = "pearl-kernels"
KEPT = 4
"""Number of digests whose machine code stays in the cache, the most recently used first."""

IN_USE = "in-use"
"""File in a digest's folder; every process that uses the folder holds a shared lock on the file."""

_COMPILER = (b"numba", b"primitives.native", b"code_cache import compiled")
"""A file outside `OWN` that compiles functions has one of these words."""

_ONLY_READ = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EROFS, errno.EPERM, errno.EACCES)
"""Error numbers of `_try_lock` on a file system without locks, or one that cannot be written."""


@dataclass(frozen=True)
class Sources:
    """The files that machine code may come from, as they were when first read.

    digest: of the files, the compiler and the processor.
    names: path → package-relative name.
    stamps: path → (st_mtime_ns, st_size).
    """

    digest: str
    names: Mapping[str, str]
    stamps: Mapping[str, tuple[int, int]]

    def unchanged(self) -> bool:
        """Return whether no file has changed since it was read."""
        with suppress(OSError):
            return all(_stamp(os.stat(path)) == stamp for path, stamp in self.stamps.items())
        return False


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


@functools.cache
def sources() -> Sources:
    """Return the files of `OWN` that kernels use, and the files of the other `PACKAGES` that
    compile functions."""
    names, stamps = {}, {}
    whole = hashlib.sha256(repr(_compiler()).encode())
    for package in PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for folder, below, files in os.walk(root):
                top = package == OWN and folder == root
                below[:] = sorted(b for b in below if not top or b in USED_FOLDERS)
                for file in sorted(files):
                    if not file.endswith(".py") or (top and file not in USED_FILES):
                        continue
                    path = os.path.join(folder, file)
                    with open(path, "rb", 0) as opened:
                        text, status = opened.read(), os.fstat(opened.fileno())
                    if package != OWN and not any(word in text for word in _COMPILER):
                        continue
                    names[path] = os.path.join(package, os.path.relpath(path, root))
                    stamps[path] = _stamp(status)
                    whole.update(f"\0{names[path]}\0{len(text)}\0".encode() + text)
    return Sources(whole.hexdigest()[:24], names, stamps)


def _compiler() -> tuple[str, ...]:
    cpu = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return numba.__version__, llvmlite.__version__, sys.version, *cpu, target_variables()


@functools.cache
def folder() -> Path | None:
    """Return the folder of machine code of this process; None, after a warning, if it has none."""
    above = os.environ.get("NUMBA_CACHE_DIR")
    root = (Path(above) if above else cache_folder()) / FOLDER
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        if why := doubts(root):
            _warn_uncached(root, f"{why}, and loading the files there would run foreign code")
            return None
        return _hold_folder(root, sources().digest)
    except OSError as error:
        _warn_uncached(root, str(error))
        return None


def _warn_uncached(root: Path, why: str) -> None:
    warnings.warn(
        f"{root}: compiled kernels cannot be kept here: {why}; every process compiles its own "
        "until NUMBA_CACHE_DIR or PEARL_CACHE_DIR names a folder that can hold them",
        RuntimeWarning,
        stacklevel=2,
    )


def _hold_folder(root: Path, digest: str) -> Path:
    """Lock and return the folder of this digest; no other process removes it while this one
    lives."""
    mine = root / digest
    for _ in range(100):
        new = not mine.is_dir()
        if new:
            mine.mkdir(mode=0o700, exist_ok=True)
        if _try_lock(mine, shared=True) is not None:
            if new:
                _prune(root, digest)
            return mine
        time.sleep(0.02)  # another process is removing it
    raise OSError("another process keeps removing it")


def _try_lock(mine: Path, *, shared: bool) -> int | None:
    """Lock the folder; return the open handle of the lock, or None if another process has it.

    On a file system without locks, or a read-only one, a shared lock counts as taken.
    """
    file = mine / IN_USE
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        host_system.lock(handle, shared=shared)
        if os.path.samestat(os.fstat(handle), os.stat(file)):
            if shared:
                os.utime(file)
            return handle
    except OSError as error:
        if shared and error.errno in _ONLY_READ:
            return handle
    os.close(handle)
    return None


def _prune(root: Path, digest: str) -> None:
    """Remove the folders used longest ago, except those that a living process uses."""
    used = {f: _used_s(f) for f in root.iterdir() if f.is_dir() and f.name != digest}
    for old in sorted(used, key=lambda f: used[f], reverse=True)[KEPT - 1 :]:
        with suppress(OSError):
            handle = _try_lock(old, shared=False)
            if handle is not None:
                shutil.rmtree(old, ignore_errors=True)
                os.close(handle)


def _used_s(old: Path) -> float:
    with suppress(OSError):
        return (old / IN_USE).stat().st_mtime
    return 0.0


_changed: set[str] = set()
"""Files that were imported in another version than `sources` read; their code is not cached."""


class _Kept(CodeCache):
    """The cached code of one function of `sources`."""

    def __init__(self, function: Any, *, parts: bool = False) -> None:
        kept = folder()
        assert kept is not None
        package = os.path.dirname(sources().names[getfile(function)]).replace(os.sep, ".")
        self.folder = kept / package
        super().__init__(function, self.folder, parts=parts)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature; None if there is none."""
        return None if _changed else super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        if sources().unchanged():  # else the code may be of newer files
            try:
                super().save_overload(sig, data)
            except OSError as error:
                _warn_uncached(self.folder, str(error))


def compiled(*, apart: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit(**options)` with a cache of machine code.

    Functions outside `PACKAGES` are not cached: the digest does not cover their sources.

    apart: compiled functions call the function by its symbol; else they contain it (`parts`).
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if interpreted(function):
            return function
        file = getfile(function)
        # The cache tells functions of a module apart by name (`native.rename`).
        unnamed = "<locals>" in function.__qualname__
        keeps = file in sources().names and not unnamed and folder() is not None
        if keeps and _stamp(os.stat(file)) != sources().stamps[file]:
            _changed.add(file)
        dispatcher: Any
        if apart:
            dispatcher = SeparateFunction(function, options)
        else:
            dispatcher = Whole(function, part(**options)(function), options)
            if keeps:
                dispatcher.part.keep_in(_Kept(function, parts=True))
        if keeps:
            dispatcher.keep_in(_Kept(function))
        return dispatcher

    return decorate
