"""Atomic writing and bounded reading of files, and locks on folders."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pearl.errors import SpecError
from pearl_devices.system import host_system

PATIENCE_S = 10.0
"""Seconds within which a reader must open a pipe that is written to (assumed)."""


_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Type of a file that is not regular → its name in errors."""


def irregular(status: os.stat_result) -> str:
    """Return what a file is if it is not regular, such as `a pipe`; empty for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """Open a regular file and return its handle, without waiting for anything.

    flags: of `os.open`. follow: whether `path` may be a link.

    Raises:
        OSError: there is no such file, or it is no regular one; with `path` as its filename.
    """
    if what := irregular(os.stat(path, follow_symlinks=follow)):  # opening a device may do harm
        raise OSError(errno.EINVAL, f"it is {what}, and a regular file is needed", str(path))
    flags |= host_system.NO_WAIT | (0 if follow else host_system.NO_LINK)
    handle = os.open(path, flags, 0o666)
    if what := irregular(os.fstat(handle)):  # replaced meanwhile
        os.close(handle)
        raise OSError(errno.EINVAL, f"it is {what}, and a regular file is needed", str(path))
    return handle


def read_bounded(path: str | Path, most_bytes: int, *, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    follow: whether `path` may be a link.

    Raises:
        OSError: the file is missing, too large, or no regular one; with `path` as its filename.
    """
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return content


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace the file at `path` by `data`, as `atomically` does."""
    with atomically(path) as file:
        file.write(data)


@contextmanager
def atomically(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the file at `path` when the context ends.

    Until then, and after an exception, the file at `path` is unchanged. Its mode stays, and its
    owner if this user may set it. For a link, the target is replaced. Missing folders are made. A
    device or a pipe is written to directly.

    Raises:
        OSError: with `path` as its filename.
    """
    try:
        with _in_place(path) or _beside(path) as file:
            yield file
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _in_place(path: str | Path) -> IO[bytes] | None:
    """Open the file at `path` if it cannot be replaced; None if it can, or does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode) and os.path.exists(os.path.realpath(path)):
        return None
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | host_system.NO_WAIT)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(status.st_mode):
                raise
            if time.monotonic() > end_s:
                raise OSError(errno.ENXIO, "nobody reads from this pipe") from None
        time.sleep(0.01)
    if host_system.NO_WAIT:
        os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def make_folders(file: Path) -> None:
    """Make the missing folders above `file`.

    Raises:
        NotADirectoryError: a file has the name of one of the folders.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(file)) from None


@contextmanager
def _beside(path: str | Path) -> Iterator[IO[bytes]]:
    target = Path(os.path.realpath(path))
    make_folders(target)
    mode, owner = 0o666 & ~_umask(), None
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        status = target.stat()
        mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    begin = os.fsdecode(os.fsencode(target.name)[:200])  # a name has at most 255 bytes
    handle, name = tempfile.mkstemp(".writing", f".{begin}.", target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            host_system.set_mode(handle, mode, owner)
            os.fsync(handle)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    host_system.sync_folder(target.parent)


LOCK = ".lock"


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Within this context, lock `folder` for this process. The folder is made if it is missing.

    The kernel releases the lock when the process ends, in any way.

    Raises:
        SpecError: another process has locked the folder, or the folder cannot be written.
    """
    handle = _locked(folder)
    try:
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        for left in folder.glob(".*.writing"):  # from a process that was killed while it wrote
            with suppress(OSError):
                left.unlink()
        yield
    finally:
        with suppress(PermissionError):  # Windows removes no open file; the next run takes it
            (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _locked(folder: Path) -> int:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = _open_lock(folder / LOCK)
        except OSError as error:
            raise SpecError(
                f"{folder}: a run cannot be written here: {error.strerror}; name another folder"
            ) from None
        try:
            host_system.lock(handle)
        except BlockingIOError:
            by = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise SpecError(
                f"{folder}: process {by} is training in it now; two runs in one folder would "
                "overwrite each other's files; name another folder, or wait"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{folder}: it cannot be locked ({error.strerror}), so a second run may begin here",
                RuntimeWarning,
                stacklevel=2,
            )
        with suppress(FileNotFoundError):
            if os.stat(folder / LOCK).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # the process with the lock has just removed the file


def _open_lock(file: Path) -> int:
    """Open a lock file, which is made if it is missing.

    Raises:
        OSError: it is no file of its own: a link, also a hard one, whose target would be written.
    """
    with suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return os.open(file, flags, 0o666)
    try:
        handle = open_regular(file, os.O_RDWR, follow=False)
    except FileNotFoundError:  # the process with the lock has just removed it
        return _open_lock(file)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise OSError(errno.EMLINK, f"its {LOCK} is a hard link")
    return handle


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
