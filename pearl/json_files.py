"""Reading of JSON files within bounds; an error is one line that names the file."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from pearl.errors import SpecError

MOST_BYTES, DEPTH = 1 << 28, 32
"""Bounds of a JSON file (assumed): a plan of 4,515 firings has 1 MB and 5 levels."""


def read_object(path: Path, hint: str) -> dict[str, Any]:
    """Read the JSON object in a file.

    hint: origin of such a file, for the error.

    Raises:
        SpecError: the file cannot be read, is larger than MOST_BYTES, holds no JSON object, or is
            nested deeper than DEPTH levels.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
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
