"""JSON files of measurements: a checksum seals each, and a file is replaced whole."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class CalibrationError(ValueError):
    """A stored calibration cannot be used, or measuring failed; the text gives the way out."""


class OutdatedError(CalibrationError):
    """A stored calibration is undamaged but was made with other versions; it is measured again."""


_loaded: dict[tuple[Path, int, int, int], Any] = {}
"""File, as it was when it was read → its content."""


def checksum(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an object's JSON with sorted keys, as hexadecimal text."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def seal(body: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum over everything else."""
    return {**body, "checksum": checksum(body)}


def unseal(value: object, schema: int, label: str) -> dict[str, Any]:
    """Check and remove the checksum of `seal`. label: first words of the error.

    Raises:
        CalibrationError: the value is damaged, or of another schema.
    """
    if not isinstance(value, dict):
        raise CalibrationError(f"{label}: an object is needed, this is {value!r:.60}")
    if value.get("schema") != schema:
        raise CalibrationError(
            f"{label}: schema is {value.get('schema')!r}; this version reads {schema}"
        )
    body = {k: v for k, v in value.items() if k != "checksum"}
    if value.get("checksum") != checksum(body):
        raise CalibrationError(
            f"{label}: the checksum does not match; the file was edited or damaged"
        )
    return body


def load(file: Path, make: Callable[[Any], T], way_out: str = "") -> T | None:
    """Return `make` of the JSON in a file, made again only if the file has changed; None if there
    is no file.

    way_out: end of the error.

    Raises:
        CalibrationError: the file cannot be read, or `make` refuses its content.
        OutdatedError: `make` raises it.
    """
    try:
        stat = file.stat()
        key = file, stat.st_ino, stat.st_mtime_ns, stat.st_size
        if key not in _loaded:
            text = file.read_text(encoding="utf-8")
            _loaded[key] = make(json.loads(text, parse_constant=_refuse_constant))
        found: T = _loaded[key]
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OutdatedError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CalibrationError(f"{file}: {error}{way_out}") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def store(file: Path, sealed: Mapping[str, Any]) -> None:
    """Write the file so that a reader sees the old one or the new one, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(sealed, out, indent=1, allow_nan=False)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
