"""The calibrated rung: this host's CPU kernels, timed once and kept in a file."""

from __future__ import annotations

import calendar
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from pearl_devices import Device, Kernel, backend
from pearl_devices.base import uses_several_cores
from pearl_devices.validation import misfit
from pearl_estimators.host.benchmark_kernels import (
    CORES,
    GROUPS,
    THREADS,
    group,
    threaded,
    timed_as,
)
from pearl_estimators.host.calibration import (
    Calibration,
    CalibrationError,
    CalibrationWarning,
    HeldOutTiming,
    OutdatedError,
)
from pearl_estimators.host.calibration_file import hold, path, store, stored
from pearl_estimators.host.child_process import in_child
from pearl_estimators.host.free_cores import share_had
from pearl_estimators.host.journal import (
    empty,
    gathered,
    group_of,
    journal_of,
    read_journal,
    timeable,
)
from pearl_estimators.host.linear_fit import Point, family
from pearl_estimators.host.remote_calibration import MEASURED_BY, calibration_of
from pearl_estimators.host.timed_again import settled
from pearl_estimators.host.timer import HELD

SECONDS = 30.0
"""Duration of measuring on first use to aim at."""
UNFINISHED_S = 3600.0
"""Age of an unfinished measuring up to which a forced one goes on with it."""
PASSED_S = 600.0
"""Pause after which this process tries again to time a kernel that could not be timed (assumed)."""
AGAIN_S, AGAIN_LIMIT_S, AGAIN_EVERY_S = 10.0, 60.0, 3600.0
"""Of timing again: the duration to aim at, its limit, and the least pause between two."""

_held: ContextVar[str] = ContextVar("held", default="")
"""Why nothing of this host is timed now (`as_known`); empty: what is needed is timed."""
_known: dict[tuple[Path, int, int], Calibration] = {}
_passed: dict[str, tuple[float, str]] = {}
"""Group → when (monotonic seconds) it was passed over, and why."""
_looked: set[Path] = set()
"""Calibrations of which this process has looked for something to be timed again."""


def _say(text: str) -> None:
    warnings.warn(text, CalibrationWarning, stacklevel=3)


def calibrate(
    platform: str = "host",
    *,
    seconds: float = SECONDS,
    force: bool = False,
    groups: Iterable[str] | None = None,
    limit_s: float | None = None,
) -> Calibration:
    """This host's calibration: the stored one, or measured now in a child process and stored.

    However measuring ends, the next call goes on with the points timed so far; with `force` only
    within UNFINISHED_S. A stored file that is damaged is made anew, with a CalibrationWarning.

    platform: `host`, the only machine that can be measured from here.
    seconds: duration of measuring to aim at, compiling included.
    groups: those of `benchmark_kernels.GROUPS` that are needed; of these only the missing ones are
        timed. By default all.
    force: measure even if a sound calibration is stored.
    limit_s: wall seconds after which measuring is ended, for compiling has no other bound;
        2 · seconds + 120 by default.

    Raises:
        CalibrationError: measuring fails or exceeds limit_s.
        ValueError: an argument is out of range.
    """
    if platform != "host":
        raise ValueError(
            f"calibrate: platform is {platform!r}; only 'host', the machine this runs on, can be "
            "measured, other platforms are estimated from their data sheets"
        )
    for name, value in (("seconds", seconds), ("limit_s", limit_s)):
        if value is not None and (wrong := misfit(value, above=True)):
            raise ValueError(f"calibrate: {name} {wrong}")
    limit_s = limit_of(seconds) if limit_s is None else limit_s
    wanted = set(GROUPS) if groups is None else set(groups) & set(GROUPS)
    found, why = _measured(wanted, seconds, limit_s, force)
    if why:
        raise CalibrationError(
            f"{why}; the {len(found.points)} kernels timed so far are kept, and the next try goes "
            "on with the others"
        )
    return found


def limit_of(seconds: float) -> float:
    """The default wall limit of a measuring that is to take `seconds` seconds."""
    return 2 * seconds + 120


def measured_calibration(groups: Sequence[str]) -> tuple[Calibration, str]:
    """This host's calibration with these groups and ""; or as far as it came, and why."""
    return _measured(set(groups), SECONDS, limit_of(SECONDS))


def _measured(
    wanted: set[str], seconds: float, limit_s: float, force: bool = False
) -> tuple[Calibration, str]:
    """The calibration with all of `wanted` and an empty text; or as far as it came, and why."""
    file = path()
    known = None if force else remembered(file)
    if known is not None and wanted <= set(known.groups):
        return known, ""
    try:
        with hold(file, limit_s) as held:
            known = None if force else remembered(file)  # another process may have measured
            if not held:
                why = f"another process was measuring this host for more than {limit_s:.0f} s"
                return known or empty(), why
            journal = journal_of(file)
            if before := read_journal(journal, UNFINISHED_S if force else None):
                known = gathered(known, before)
            else:
                journal.unlink(missing_ok=True)
            lacking = wanted - set(known.groups if known else ())
            result, why = timed_now(known or empty(), lacking, seconds, limit_s)
            if not why or not force:
                keep(result)
            return result, why
    except OSError as error:
        why = f"{error.filename or file}: {error.strerror}; set PEARL_CACHE_DIR to another folder"
        return known or empty(), why


def timed_now(
    known: Calibration,
    groups: set[str],
    seconds: float,
    limit_s: float,
    only: Sequence[str] = (),
) -> tuple[Calibration, str]:
    """`known` with the missing points of `groups` timed, and why some are missing still (or an
    empty text). only: those of these codes alone (`code_of`), in this order; empty: all."""
    journal, begin_s, why = journal_of(path()), time.monotonic(), ""
    if groups:
        given = {"groups": sorted(groups), "known": known.to_json(), "journal": str(journal)}
        given |= {"only": [*only]}
        try:
            in_child("measure", seconds, timeout_s=limit_s, given=given)
        except CalibrationError as error:
            why = str(error)
    return gathered(known, read_journal(journal), time.monotonic() - begin_s), why


def keep(result: Calibration) -> None:
    """Store the calibration and remove the journal that it was gathered from."""
    if result.points or result.skipped:
        store(result)
    journal_of(path()).unlink(missing_ok=True)


def remembered(file: Path) -> Calibration | None:
    """The stored calibration, read again only where the file has changed; None where there is none
    or it has to be made anew."""
    try:
        stat = file.stat()
    except OSError:
        return None
    key = file, stat.st_mtime_ns, stat.st_size
    if key not in _known:
        try:
            found = stored()
        except OutdatedError:
            return None
        except CalibrationError as error:
            _say(f"{error}; it is made anew")
            return None
        if found is None:
            return None
        _known[key] = found
    return _known[key]


ESTIMATE = "pearl_estimators.cpu:calibrated_or_roofline"
"""Estimator of the device kinds that this calibration is for."""


def calibrated(device: Device) -> bool:
    """Whether kernels of `device` are timed by the calibration of its host."""
    return device.real and backend(device.kind).ESTIMATE == ESTIMATE


def calibrated_here(device: Device) -> bool:
    """Whether kernels of `device` are timed by the calibration of this host."""
    return calibrated(device) and device.host not in MEASURED_BY


def calibration(device: Device, kernels: Iterable[Kernel] = ()) -> Calibration:
    """The calibration of a CPU of this host, or of one in MEASURED_BY, for these kernels, timed on
    first use unless `as_known` holds.

    Kernels that cannot be timed within the limit are left to the next rung for PASSED_S. Points
    that were timed under load, or are in doubt, are timed again where this host is quiet now. A
    CalibrationWarning says so.

    Raises:
        ValueError: the device is not a CPU of this host.
    """
    if calibrated(device) and device.host in MEASURED_BY:
        return calibration_of(device.host, needed_groups(kernels))
    if not calibrated_here(device):
        raise ValueError(
            f"device {device.name!r} (kind {device.kind}) is not a CPU of this host; only those "
            "are calibrated"
        )
    if _held.get():
        return remembered(path()) or empty()
    needed = needed_groups(kernels)
    wanted = needed - set(skipped_groups())
    if not wanted:
        return remembered(path()) or empty()
    found, why = _measured(wanted, SECONDS, limit_of(SECONDS))
    if why:
        skip_groups(wanted - set(found.groups), why)
        return found
    return _again(found, wanted)


@contextmanager
def as_known(why: str) -> Iterator[None]:
    """Meanwhile nothing of this host is timed: kernels that were never timed are estimated from the
    data sheet. why: for the notes of plans."""
    token = _held.set(why)
    try:
        yield
    finally:
        _held.reset(token)


def skipped_groups() -> dict[str, str]:
    """Groups that are passed over now, and why."""
    if why := _held.get():
        return dict.fromkeys(GROUPS, why)
    now_s = time.monotonic()
    return {name: why for name, (at_s, why) in _passed.items() if now_s - at_s < PASSED_S}


def skip_groups(groups: Iterable[str], why: str) -> None:
    """Leave the untimed kernels of these groups to the next rung for PASSED_S, with a warning.

    Groups that are passed over already are left as they are.
    """
    fresh = sorted(set(groups) - set(skipped_groups()))
    if not fresh:
        return
    _passed.update(dict.fromkeys(fresh, (time.monotonic(), why)))
    _say(
        f"{why}; what is not timed yet of {', '.join(fresh)} is estimated from the data sheet; "
        "`pearl calibrate` times it"
    )


def missing_groups(kernels: Iterable[Kernel]) -> list[str]:
    """Groups that would be timed now for these kernels: the needed ones, less those that are stored
    or passed over."""
    found = remembered(path())
    return sorted(
        needed_groups(kernels) - set(found.groups if found else ()) - set(skipped_groups())
    )


def needed_groups(kernels: Iterable[Kernel]) -> set[str]:
    """Groups of `benchmark_kernels.GROUPS` that estimates of these kernels rest on."""
    return {"shared", *(group(family(kernel)) for kernel in kernels)} & set(GROUPS)


def untimed(known: Calibration, kernel: Kernel, variant: str) -> bool:
    """Whether a complete calibration has this kernel in this variant, and `known` lacks it."""
    variant = timed_as(variant)
    named = f"{family(kernel)} {variant}"
    return (
        named in timeable(group(family(kernel)))
        and named not in known.skipped
        and known.find(kernel, variant) is None
    )


def comparable(known: Calibration, kernel: Kernel, variants: Sequence[str]) -> list[str]:
    """The variants, of those offered on a CPU of this host, that a plan may choose from.

    A datasheet estimate is off by more than variants are apart, so untimed variants are left out.
    Where all are untimed the first stays, which is the backend's own preference.
    """
    found = [v for v in variants if not untimed(known, kernel, v)]
    return found or list(variants[:1])


# ---------------------------------------------------------------------- timed again


def cores_are_idle(cores: int) -> bool:
    """Whether so many cores are free now: those that are about to be used."""
    return share_had(cores) >= 1 / HELD


def _again(found: Calibration, wanted: set[str]) -> Calibration:
    """`found`, with points of `wanted` in doubt or timed under load timed again, and what lanes or
    several threads of torch cost where that is lacking: where this host is quiet, once a process,
    and not within AGAIN_EVERY_S of the last time."""
    file = path()
    if file in _looked:
        return found
    _looked.add(file)
    due = [p for p in found.points if group_of(p) in wanted and _due(p, found)]
    lanes = CORES > 1 and not found.runtime
    have = {p.named for p in found.points} | set(found.skipped)
    threads = {group(n) for n in threaded(wanted) if f"{n} {THREADS}" not in have}
    if not (due or lanes or threads) or _recent(found.again):
        return found
    several = lanes or threads or any(uses_several_cores(p.variant) for p in due)
    if not cores_are_idle(2 if several else 1):
        return found
    reasons = {
        "timed under load": sum(p.loaded for p in due),
        "contradicted by a run": sum(p.named in found.doubts and not p.loaded for p in due),
    }
    what = [f"{n} kernels {why}" for why, n in reasons.items() if n]
    what += ["what lanes cost"] if lanes else []
    what += ["threads of torch"] if threads else []
    _say(f"this host is quiet: timing again {', '.join(what)}, up to {AGAIN_LIMIT_S:.0f} s")
    try:
        with hold(file, AGAIN_LIMIT_S) as held:
            if not held:
                return found
            kept = tuple(p for p in found.points if p not in due)
            groups = {group_of(p) for p in due} | threads or {"shared"}
            _, why = timed_now(replace(found, points=kept), groups, AGAIN_S, AGAIN_LIMIT_S)
            result = settled(found, gathered(found, read_journal(journal_of(file))))
            keep(result)
    except OSError as error:
        why, result = f"{error.filename or file}: {error.strerror}", found
    if why:
        _say(f"{why}; what was not timed again counts as before")
    return result


def needs_retiming(kernels: Iterable[Kernel]) -> bool:
    """Whether estimates of these kernels rest on points that are to be timed again, or the cost of
    lanes is."""
    found, wanted = remembered(path()), needed_groups(kernels)
    if found is None or _held.get():
        return False
    lanes = CORES > 1 and not found.runtime
    return lanes or any(_due(p, found) for p in found.points if group_of(p) in wanted)


def _due(point: Point, known: Calibration) -> bool:
    return point.loaded or point.named in known.doubts


def _recent(stamp: str) -> bool:
    if not stamp:
        return False
    then = calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
    return abs(time.time() - then) < AGAIN_EVERY_S


def check(calibration: Calibration, *, seconds: float = 8.0) -> list[HeldOutTiming]:
    """Time kernels outside all fits, in a child process, beside the predictions of
    `calibration`."""
    rows = in_child("check", seconds, timeout_s=2 * seconds + 120, given=calibration.to_json())
    return [HeldOutTiming(**row) for row in rows]
