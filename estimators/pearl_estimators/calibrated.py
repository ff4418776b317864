"""The calibrated rung: this host's CPU kernels, timed once and kept in a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pearl_devices import Device, Kernel
from pearl_estimators.estimate import Estimate
from pearl_estimators.fit import Fit, Point, family, point, predict

if TYPE_CHECKING:
    from pearl_estimators.child import Check

SCHEMA = 1
SOURCES = ("fit", "terms", "draws", "points", "child", "measured")
"""Modules here on which a calibration depends."""
NOISY = 1.1  # slow-down while measuring above which the machine counts as shared, assumed


class CalibrationError(ValueError):
    """A stored calibration cannot be used, or the measuring failed; the text says what to do."""


class OutdatedError(CalibrationError):
    """A stored calibration is sound but of other versions; it is measured anew."""


@dataclass(frozen=True)
class Calibration:
    """What this host's kernels cost, per family and variant.

    host: CPU model and cores. versions: of the libraries and of the kernels' sources. created:
    UTC, ISO 8601. wall_s: seconds the measuring took. load: one-minute load average before it.
    contention: mean slow-down seen (wall over CPU time, slowest over fastest round); above 1.1 the
    machine was shared, `noisy`, and all bands are wider. fits: the models. skipped: family and
    variant → why it was not timed. runtime: what several lanes cost (`firing_s` of a lane for each
    firing, `handoff_s` from one lane to another, `carry_s_per_byte` of each for a byte between);
    empty where no runtime is installed. points: what was timed. groups: which of `points.GROUPS`
    were. apart_s: `exchange.exchange_s` while calls on two cores were timed, for which their
    estimates hold; 0 where there were none.
    """

    host: Mapping[str, str]
    versions: Mapping[str, str]
    created: str
    wall_s: float
    load: float
    contention: float
    fits: tuple[Fit, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, float] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    groups: tuple[str, ...] = ()
    apart_s: float = 0.0
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for name in ("host", "versions", "skipped", "runtime"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for name in ("wall_s", "load", "contention", "apart_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"calibration: {name} is {value}; it must be finite, at least 0")
        for name, value in self.runtime.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"calibration: runtime.{name} is {value}; it must be finite, at least 0"
                )

    @property
    def noisy(self) -> bool:
        return self.contention > NOISY

    def find(self, kernel: Kernel, variant: str) -> Fit | None:
        """The fit for a kernel and variant, or None where none was made."""
        wanted = family(kernel)
        for each in self.fits:
            if (each.family, each.variant) == (wanted, variant):
                return each
        return None

    def to_json(self) -> dict[str, Any]:
        """A plain object with a checksum over everything else."""
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("host", "versions", "skipped", "runtime"):
            body[name] = dict(body[name])
        body["fits"] = [_plain_fit(each) for each in self.fits]
        body["points"] = [{**vars(each), "terms": dict(each.terms)} for each in self.points]
        body = json.loads(json.dumps(body, allow_nan=False))
        return {**body, "checksum": _checksum(body)}

    @classmethod
    def from_json(cls, value: object) -> Calibration:
        """The inverse of `to_json`; what is incomplete, edited or not a number is a
        CalibrationError."""
        if not isinstance(value, dict):
            raise CalibrationError(f"calibration: an object is needed, this is {value!r:.60}")
        if value.get("schema") != SCHEMA:
            raise CalibrationError(
                f"calibration: schema is {value.get('schema')!r}; this version reads {SCHEMA}"
            )
        body = {k: v for k, v in value.items() if k != "checksum"}
        if value.get("checksum") != _checksum(body):
            raise CalibrationError(
                "calibration: the checksum does not match; the file was edited or damaged"
            )
        try:
            made = [_fit_from(each) for each in body["fits"]]
            points = tuple(Point(**each) for each in body["points"])
            groups = tuple(body["groups"])
            return cls(**{**body, "fits": tuple(made), "points": points, "groups": groups})
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"calibration: {error}") from None


def _fit_from(each: dict[str, Any]) -> Fit:
    lists = {name: tuple(each[name]) for name in ("flops", "bytes")}
    return Fit(**{**each, **lists})


def _plain_fit(fit: Fit) -> dict[str, Any]:
    found = {f.name: getattr(fit, f.name) for f in fields(fit)}
    return {**found, "costs": dict(fit.costs)}


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def estimate_from(found: Fit, calibration: Calibration, kernel: Kernel, variant: str) -> Estimate:
    """The calibrated rung: the fit's prediction with its 90 % band."""
    guess = predict(found, point(kernel, variant, 1.0))
    source = f"calibrated on this host {calibration.created[:10]}, {found.points} points"
    if guess.extrapolated:
        source += "; outside the calibrated sizes, band doubled"
    if calibration.noisy:
        source += "; noisy: the machine was shared while measuring, band widened"
    return Estimate(
        guess.seconds,
        low_s=guess.low_s,
        high_s=guess.high_s,
        rung="calibrated",
        bound_by=guess.bound_by,
        source=source,
    )


def host() -> dict[str, str]:
    """CPU model and cores, as far as the operating system tells."""
    import platform

    model = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        wanted = ("model name", "cpu family", "model", "stepping")
        lines = listing.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        parts = [line.partition(":") for line in lines.splitlines()]
        pairs = {name.strip(): value.strip() for name, _, value in parts}
        model = ", ".join(pairs[name] for name in wanted if name in pairs) or model
    return {"cpu": model, "cores": str(os.cpu_count() or 1)}


def versions() -> dict[str, str]:
    """Versions of what a kernel's time depends on; imports none of it."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("pearl-toolkit", "numpy", "numba", "scipy", "torch", "gymnasium"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    digest = hashlib.sha256()
    sources = [Path(__file__).with_name(f"{name}.py") for name in SOURCES]
    where = find_spec("pearl_devices.primitives")
    for folder in where.submodule_search_locations or () if where else ():
        sources += sorted(Path(folder).glob("*.py"))
    for source in sources:
        digest.update(source.read_bytes())
    return {**found, "kernels": digest.hexdigest()[:16]}


def path() -> Path:
    """Where this host's calibration lies: PEARL_CACHE_DIR, or the user's cache folder."""
    from platformdirs import user_cache_dir

    folder = os.environ.get("PEARL_CACHE_DIR") or user_cache_dir("pearl", appauthor=False)
    return Path(folder) / f"calibration-{_checksum(host())[:12]}.json"


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
    if value.get("checksum") != _checksum(body) or body.get("host") != host():
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
    from pearl_estimators.child import in_child

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
    from pearl_estimators.child import Check, in_child

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
