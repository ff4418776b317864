"""The calibrated rung: this host's CPU kernels, timed once and kept in a file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pearl_devices import Device, Kernel
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.calibration import (
    SCHEMA,
    Calibration,
    CalibrationError,
    Check,
    OutdatedError,
    checksum,
    host,
    versions,
)
from pearl_estimators.child import in_child


def path() -> Path:
    """Where this host's calibration lies."""
    return cache_folder() / f"calibration-{checksum(host())[:12]}.json"


def stored() -> Calibration | None:
    """The stored calibration of this host, or None where there is no file.

    Raises CalibrationError for a file that is damaged, edited or another host's, OutdatedError for
    one of other versions.
    """
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{file}: cannot be read ({error}); {_REMEDY}") from None
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if changed := _changed(value):
            raise OutdatedError(f"{file}: measured with other versions of {', '.join(changed)}")
        found = Calibration.from_json(value)
    except OutdatedError:
        raise
    except ValueError as error:
        raise CalibrationError(f"{file}: {error}; {_REMEDY}") from None
    if dict(found.host) != host():
        raise CalibrationError(
            f"{file}: measured on another host ({found.host.get('cpu')}, "
            f"{found.host.get('cores')} cores), this one is {host()}; {_REMEDY}"
        )
    return found


def _changed(value: Any) -> list[str]:
    """What has another version now than in a whole file of this host, whose fits may be of another
    form; empty where the file is of now, or not whole."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return []
    body = {k: v for k, v in value.items() if k != "checksum"}
    if value.get("checksum") != checksum(body) or body.get("host") != host():
        return []
    then, now = body.get("versions"), versions()
    if not isinstance(then, dict):
        return []
    return sorted(k for k in now if then.get(k) != now[k])


_REMEDY = "delete it or run `pearl calibrate` to measure anew"


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


_known: dict[tuple[Path, int, int], Calibration] = {}


def calibrate(
    platform: str = "host",
    *,
    seconds: float = 30.0,
    force: bool = False,
    groups: Iterable[str] | None = None,
) -> Calibration:
    """This host's calibration: the stored one, or measured now in a child process and stored.

    platform: `host`, the only machine that can be measured from here. seconds: what measuring may
    take, compiling included. groups: what of `points.GROUPS` is needed; of these only those are
    timed that have not been; by default all. force: measure even if a sound one is stored, and
    replace an unsound one. Raises CalibrationError (a ValueError) for a stored file
    that is unsound, and where measuring fails.
    """
    if platform != "host":
        raise ValueError(
            f"calibrate: platform is {platform!r}; only 'host', the machine this runs on, can be "
            "measured, other platforms are estimated from their data sheets"
        )
    if not seconds > 0:
        raise ValueError(f"calibrate: seconds is {seconds}; it must be above 0")
    from pearl_estimators.points import GROUPS

    wanted = set(GROUPS) if groups is None else set(groups) & set(GROUPS)
    file = path()
    if not force and file.exists():
        stat = file.stat()
        key = file, stat.st_mtime_ns, stat.st_size
        if key in _known and wanted <= set(_known[key].groups):
            return _known[key]
    found = None if force else _stored_or_none()
    if found is not None and wanted <= set(found.groups):
        stat = file.stat()
        _known[file, stat.st_mtime_ns, stat.st_size] = found
        return found
    with _alone(file):
        found = None if force else _stored_or_none()
        lacking = wanted - set(found.groups if found else ())
        if found is not None and not lacking:
            return found  # measured by another process while this one waited
        given = {"groups": sorted(lacking), "known": found.to_json() if found else None}
        measured = in_child("measure", seconds, timeout_s=2 * seconds + 120, given=given)
        result = Calibration.from_json(measured)
        store(result)
    return result


def _stored_or_none() -> Calibration | None:
    try:
        return stored()
    except OutdatedError:
        return None


def calibration(device: Device, kernels: Iterable[Kernel] = ()) -> Calibration:
    """The calibration of a CPU of this host with all that these kernels need, timed on first use.

    A device that is not a CPU of this host is a ValueError.
    """
    if device.kind != "cpu" or not device.real:
        raise ValueError(
            f"device {device.name!r} (kind {device.kind}) is not a CPU of this host; only those "
            "are calibrated"
        )
    return calibrate(groups=_needed(kernels))


def lacking(kernels: Iterable[Kernel]) -> list[str]:
    """What of `points.GROUPS` the stored calibration lacks for these kernels; all they need where
    there is none."""
    found = _stored_or_none()
    return sorted(_needed(kernels) - set(found.groups if found else ()))


def _needed(kernels: Iterable[Kernel]) -> set[str]:
    from pearl_estimators.points import GROUPS, group

    return {"shared", *(group(kernel.kind) for kernel in kernels)} & set(GROUPS)


def check(calibration: Calibration, *, seconds: float = 8.0) -> list[Check]:
    """Time kernels that no fit has seen, in a child process, beside what `calibration` predicts."""
    rows = in_child("check", seconds, timeout_s=2 * seconds + 120, given=calibration.to_json())
    return [Check(**row) for row in rows]


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold a lock beside `file`, so that two first uses do not measure against each other.

    Where the system has no file locks the last writer wins, which is safe but slower.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
