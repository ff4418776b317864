"""The file of this host's calibration: its path, the checks of its content, and its lock."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host.calibration import (
    SCHEMA,
    Calibration,
    CalibrationError,
    OutdatedError,
    checksum,
    host,
    versions,
)

LOCK_S = 0.05
"""From one look at a lock that another process holds to the next."""


def path() -> Path:
    """Path of this host's calibration."""
    return cache_folder() / f"calibration-{checksum(host())[:12]}.json"


def stored() -> Calibration | None:
    """The stored calibration of this host, or None where there is no file.

    Raises:
        CalibrationError: the file is damaged, edited or another host's.
        OutdatedError: it is of other versions.
    """
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{file}: cannot be read ({error})") from None
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if changed := _changed(value):
            raise OutdatedError(f"{file}: measured with other versions of {', '.join(changed)}")
        found = Calibration.from_json(value)
    except OutdatedError:
        raise
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{file}: {error}") from None
    if dict(found.host) != host():
        raise CalibrationError(
            f"{file}: measured on another host ({found.host.get('cpu')}, "
            f"{found.host.get('cores')} cores), this one is {host()}"
        )
    return found


def _changed(value: Any) -> list[str]:
    """Names of the versions that differ from those of a whole file of this host, whose fits may
    have another form; empty where none does, or the file is not whole."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return []
    body = {k: v for k, v in value.items() if k != "checksum"}
    if value.get("checksum") != checksum(body) or body.get("host") != host():
        return []
    then, now = body.get("versions"), versions()
    if not isinstance(then, dict):
        return []
    return sorted(k for k in now if then.get(k) != now[k])


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def store(calibration: Calibration) -> None:
    """Write the file so that a reader sees the old one or the new one, never a part."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".calibration-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(calibration.to_json(), out, indent=1, allow_nan=False)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def hold(file: Path, limit_s: float) -> Iterator[bool]:
    """Hold a lock beside `file`, so that two first uses do not measure against each other; False
    where another process has held it for limit_s.

    Where the system has no file locks the last writer wins, which is safe but slower.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        yield _locked(lock.fileno(), limit_s)


def _locked(handle: int, limit_s: float) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    end_s = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                return False
            time.sleep(LOCK_S)
        else:
            return True
