"""The files of this host's calibration: the calibration itself, its lock, and its journal.

The process that measures appends a line for every timed kernel to the journal. A line is whole or
does not count, so an end of any kind (Ctrl-C, a time limit, a power cut) loses at most the kernel
that is being timed.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pearl_devices.cache_folder import cache_folder
from pearl_devices.system import host_system
from pearl_estimators import sealed_files
from pearl_estimators.host.calibration import (
    SCHEMA,
    Calibration,
    CalibrationWarning,
    host,
    versions,
)
from pearl_estimators.host.linear_fit import Point
from pearl_estimators.sealed_files import CalibrationError, OutdatedError, checksum, seal, unseal

LOCK_POLL_S = 0.05
"""Pause between two attempts to take a lock that another process holds."""
JOURNAL_SCHEMA = 1

Tell = Callable[[Mapping[str, Any]], None]
"""Takes one finding: one of `point` (a Point's fields), `skipped` (family and variant → why),
`apart_s`, `runtime` and `beside` (fields of Calibration)."""


def path() -> Path:
    """Return the path of this host's calibration."""
    return cache_folder() / f"calibration-{checksum(host())[:12]}.json"


def load_calibration() -> Calibration | None:
    """Read the stored calibration of this host, again only if the file has changed; None if there
    is no file.

    Raises:
        CalibrationError: the file is damaged, edited or another host's.
        OutdatedError: the file was made with other versions.
    """
    return sealed_files.load(path(), _read)


def _read(value: Any) -> Calibration:
    if changed := _changed_versions(value):
        raise OutdatedError(f"{path()}: measured with other versions of {', '.join(changed)}")
    calibration = Calibration.from_json(value)
    if dict(calibration.host) != host():
        raise CalibrationError(
            f"measured on another host ({calibration.host.get('cpu')}, "
            f"{calibration.host.get('cores')} cores), this one is {host()}"
        )
    return calibration


def load_usable() -> Calibration | None:
    """Return the stored calibration; None if there is none, or if it has to be measured again. A
    CalibrationWarning reports a damaged file."""
    try:
        return load_calibration()
    except OutdatedError:
        return None
    except CalibrationError as error:
        warnings.warn(
            f"{error}; the calibration is measured again", CalibrationWarning, stacklevel=3
        )
        return None


def _changed_versions(value: Any) -> list[str]:
    """Return the names of the versions that differ from those of an undamaged file of this host.

    Fits of other versions may have another form. Empty for a damaged file, whose versions are
    unknown.
    """
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return []
    body = {k: v for k, v in value.items() if k != "checksum"}
    if value.get("checksum") != checksum(body) or body.get("host") != host():
        return []
    then, now = body.get("versions"), versions()
    if not isinstance(then, dict):
        return []
    return sorted(k for k in now if then.get(k) != now[k])


def store(calibration: Calibration) -> None:
    """Replace the stored calibration of this host."""
    sealed_files.store(path(), calibration.to_json())


@contextmanager
def locking(limit_s: float) -> Iterator[bool]:
    """Within this context, hold the lock of the calibration; False if another process kept the lock
    for limit_s.

    The lock keeps two first uses from measuring against each other. On a system without file locks
    the last writer wins, which is safe but slower.
    """
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        yield _lock(lock.fileno(), limit_s)


def _lock(handle: int, limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while True:
        try:
            host_system.lock(handle)
        except BlockingIOError:
            if time.monotonic() > end_s:
                return False
            time.sleep(LOCK_POLL_S)
        except OSError:  # this file system has no locks
            return True
        else:
            return True


def journal_path() -> Path:
    """Return the path of the journal, in the folder of this host's calibration."""
    return path().with_suffix(".journal")


def _journal_stamp() -> str:
    """Digest of host and versions. Lines with another stamp do not count."""
    return checksum({"host": host(), "versions": versions()})[:16]


def journal_writer(file: Path) -> Tell:
    """Return a function that appends a finding to the journal."""
    stamp = _journal_stamp()

    def tell(finding: Mapping[str, Any]) -> None:
        line = {"schema": JOURNAL_SCHEMA, "made_by": stamp, **finding}
        text = json.dumps(seal(line), allow_nan=False)
        # One write to a file opened for appending: lines of two processes never mix.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    return tell


def read_journal(max_age_s: float | None = None) -> list[dict[str, Any]]:
    """Read the findings in the journal, oldest first.

    Lines that are cut, damaged or of another host or version are ignored.

    max_age_s: age of the last line above which the whole journal is ignored.
    """
    file = journal_path()
    try:
        if max_age_s is not None and time.time() - file.stat().st_mtime > max_age_s:
            return []
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    stamp, findings = _journal_stamp(), []
    for line in lines:
        try:
            body = unseal(json.loads(line), JOURNAL_SCHEMA, "journal")
            if "point" in body:
                Point(**body["point"])
        except (ValueError, TypeError, RecursionError):
            continue
        if body.pop("made_by", None) == stamp:
            findings.append(body)
    return findings
