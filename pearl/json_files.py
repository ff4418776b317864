"""Reading of JSON files within bounds; an error is one line that names the file."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.files import read_bounded
from pearl.formatting import printable

MOST_BYTES, DEPTH = 16 * 2**20, 32
"""Bounds of a JSON file (assumed): a plan of 4,515 firings has 1 MB and 5 levels. A file of many
empty lists takes 32 times its size in memory."""


def read_object(path: Path, hint: str, *, follow: bool = True) -> dict[str, Any]:
    """Read the JSON object in a file. Its texts lose control characters and line ends.

    hint: origin of such a file, for the error.
    follow: whether the file may be a link; in the folder of a run or a sweep it may not.

    Raises:
        SpecError: the file cannot be read, is no regular file, is larger than MOST_BYTES, holds no
            JSON object, or is nested deeper than DEPTH levels.
    """
    try:
        content = read_bounded(path, MOST_BYTES, follow=follow)
        if path.suffix == ".gz":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise SpecError(f"{path}: larger than {MOST_BYTES} bytes; {hint}")
        value = json.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{path}: cannot be read: {why}; {hint}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested deeper than {DEPTH} levels; {hint}") from None
    except ValueError as error:
        raise SpecError(f"{path}: not JSON: {error}; {hint}") from None
    if not isinstance(value, dict):
        raise SpecError(f"{path}: an object is needed, this is a {type(value).__name__}; {hint}")
    refuse_deep(value, str(path))
    clean: dict[str, Any] = printable_values(value)
    return clean


def printable_values(value: Any) -> Any:
    """Return a JSON value whose texts and keys have no control characters and no line ends."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(each) for each in value]
    if isinstance(value, dict):
        return {printable(key): printable_values(each) for key, each in value.items()}
    return value


def refuse_deep(value: object, where: str) -> None:
    """Check that a value has at most DEPTH levels of objects and lists.

    Raises:
        SpecError: there are more levels.
    """
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            child
            for part in level
            for child in (
                part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
            )
        ]
        if not level:
            return
    raise SpecError(f"{where}: nested deeper than {DEPTH} levels; PEARL writes no such file")
