"""Files inside the folders of runs and sweeps. Such a folder may come from a stranger.

The folder itself may be a link, because the user names it. No link below it is followed, and only
regular files are read. A file that is written replaces what stands in its place. Paths below the
folder are names such as `plans/plan-1.json`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from pearl.errors import SpecError
from pearl.files import irregular, open_regular, write_atomically
from pearl_devices.validation import quote

WAY_OUT = "no link is followed in the folder of a run or a sweep, and only regular files are read"


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a regular file below a folder; None if there is none.

    Raises:
        SpecError: it, or a folder on the way to it, is a link, or it is a pipe, a device, a folder
            or a socket.
    """
    file, status = folder / name, _status(folder, name)
    if status is None:
        return None
    if what := irregular(status):
        raise SpecError(f"{file}: it is {what}; {WAY_OUT}; remove it, or put the file in its place")
    return file


def file_of(path: Path, name: str) -> Path:
    """Return the path of the file `name` if `path` is a folder, else `path` itself. A link that the
    user names is followed, a link in the folder is not.

    Raises:
        SpecError: as of `find`.
    """
    if not path.is_dir():
        return path
    find(path, name)
    return path / name


def find_folder(folder: Path, name: str) -> Path | None:
    """Return the path of a folder below a folder; None if there is none.

    Raises:
        SpecError: it, or a folder on the way to it, is a link or a file.
    """
    status = _status(folder, f"{name}/.")  # . is the folder on the way to it
    return None if status is None else folder / name


def clear(folder: Path, name: str) -> Path:
    """Return the path at which a file below a folder is written. A link, pipe, device or socket
    there is removed, so that a write cannot reach its target.

    Raises:
        SpecError: a folder on the way to it is a link, or it is a folder.
        OSError: what is there cannot be removed.
    """
    file, status = folder / name, _status(folder, name)
    if status is not None and (what := irregular(status)):
        if stat.S_ISDIR(status.st_mode):
            raise SpecError(f"{file}: it is {what}, and a file is written here; move it away")
        file.unlink(missing_ok=True)
    return file


def write(folder: Path, name: str, data: bytes) -> None:
    """Write a file below a folder, completely or not at all.

    Raises:
        SpecError: as of `clear`.
        OSError: with the path as its filename.
    """
    write_atomically(clear(folder, name), data)


def append_text(folder: Path, name: str) -> TextIO:
    """Open a file below a folder, which `write` has written, to append lines.

    Raises:
        SpecError: as of `find`.
        OSError: with the path as its filename.
    """
    handle = open_regular(file_of(folder, name), os.O_WRONLY | os.O_APPEND, follow=False)
    return os.fdopen(handle, "a", newline="", encoding="utf-8")


def refuse_links(folder: Path) -> None:
    """Check that the folder of a sweep, with all folders below it, has folders and regular files
    alone.

    Raises:
        SpecError: it has a link, a pipe, a device or a socket; the text names each.
    """
    problems = []
    for where, folders, files in os.walk(folder):  # it follows no links
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                mode = os.stat(os.path.join(where, name), follow_symlinks=False)
                if not stat.S_ISDIR(mode.st_mode) and (what := irregular(mode)):
                    problems.append(f"{os.path.join(where, name)}: it is {what}; {WAY_OUT}")
    if problems:
        raise SpecError(*problems)


def _status(folder: Path, name: str) -> os.stat_result | None:
    """Return the status of what `name` is below a folder; None if there is nothing.

    Raises:
        SpecError: a folder on the way to it is a link or no folder, or the name leads elsewhere.
    """
    *above, last = name.split("/")
    if {"", ".", ".."} & {*above} or last in ("", ".."):
        raise SpecError(f"{folder}: {quote(name)} is no name of a file in this folder")
    here = folder
    try:
        for part in above:
            here = here / part
            status = here.lstat()
            if not stat.S_ISDIR(status.st_mode):
                what = irregular(status) or "a file"
                raise SpecError(f"{here}: it is {what}, and a folder is needed; {WAY_OUT}")
        return status if last == "." else (here / last).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"{here}: cannot be read: {reason}") from None
