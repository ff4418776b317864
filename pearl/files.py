"""Files that are written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pearl.errors import SpecError


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace the file at `path` by `data`, wholly or not at all. An OSError leaves it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(".writing", f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


LOCK = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """`folder`, made where it is missing, for this process alone.

    The kernel gives the lock back when the process ends, however it ends, so that none is left
    behind. A folder that another process holds, or that cannot be written, is a SpecError.
    """
    handle = _locked(folder)
    try:
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        for left in folder.glob(".*.writing"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _locked(folder: Path) -> int:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SpecError(
                f"{folder}: a run cannot be written here: {error.strerror}; name another folder"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise SpecError(
                f"{folder}: process {by} is training in it now; two runs in one folder would "
                "overwrite each other's files; name another folder, or wait"
            ) from None
        with suppress(FileNotFoundError):
            if os.stat(folder / LOCK).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # whoever held it has just removed it


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
