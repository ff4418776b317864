"""Measure this host in a child process, and store the timings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from pearl_devices.validation import explain_misfit
from pearl_estimators.host.benchmark_kernels import GROUPS, group
from pearl_estimators.host.calibration import Calibration, HeldOutTiming
from pearl_estimators.host.calibration_file import (
    journal_path,
    load_usable,
    locking,
    path,
    read_journal,
    store,
)
from pearl_estimators.host.calibration_updates import (
    empty_calibration,
    fit_journal,
    points_of_group,
)
from pearl_estimators.host.child_process import run_in_child
from pearl_estimators.sealed_files import CalibrationError

SECONDS = 30.0
"""Target duration of measuring on first use."""
UNFINISHED_S = 3600.0
"""A forced measuring continues an unfinished one up to this age."""
FEW_S = 1.5
"""Target duration of timing a few kernels, as after a run. A slow or busy host takes longer."""


def calibrate(
    platform: str = "host",
    *,
    seconds: float = SECONDS,
    force: bool = False,
    groups: Iterable[str] | None = None,
    limit_s: float | None = None,
) -> Calibration:
    """Return this host's calibration: the stored one, or one measured now in a child process.

    However measuring ends, the next call continues with the points timed so far; with `force` only
    within UNFINISHED_S. A CalibrationWarning reports a damaged file, which is measured again.

    Args:
        platform: `host`, the only machine that can be measured from here.
        seconds: target duration of measuring, compiling included.
        groups: those of `benchmark_kernels.GROUPS` that are needed; only missing ones are timed. By
            default all.
        force: measure even if an undamaged calibration is stored.
        limit_s: wall seconds after which measuring ends, since compiling has no other bound; 2 ·
            seconds + 120 by default.

    Examples:
        >>> calibration = pearl.calibrate(groups=())  # the stored one, if no group is needed
        >>> calibration.schema > 0
        True

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
        if value is not None and (wrong := explain_misfit(value, above=True)):
            raise ValueError(f"calibrate: {name} {wrong}")
    limit_s = limit_of(seconds) if limit_s is None else limit_s
    wanted = set(GROUPS) if groups is None else set(groups) & set(GROUPS)
    calibration, reason = _measure(wanted, seconds, limit_s, force)
    if reason:
        raise CalibrationError(
            f"{reason}; the timings of {len(calibration.points)} kernels are stored, and the next "
            "attempt continues with the others"
        )
    return calibration


def limit_of(seconds: float) -> float:
    """Return the default wall limit of a measuring with this target duration."""
    return 2 * seconds + 120


def measured_calibration(groups: Sequence[str]) -> tuple[Calibration, str]:
    """Return this host's calibration with these groups, and why groups are missing (or "")."""
    return _measure(set(groups), SECONDS, limit_of(SECONDS))


def _measure(
    wanted: set[str], seconds: float, limit_s: float, force: bool = False
) -> tuple[Calibration, str]:
    """Measure like `measured_calibration`, with a target duration and a limit."""
    calibration = None if force else load_usable()
    if calibration is not None and wanted <= set(calibration.groups):
        return calibration, ""
    try:
        with locking(limit_s) as locked:
            calibration = None if force else load_usable()  # another process may have measured
            if not locked:
                reason = f"another process was measuring this host for more than {limit_s:.0f} s"
                return calibration or empty_calibration(), reason
            calibration = _resume_journal(calibration, UNFINISHED_S if force else None)
            result, reason = time_groups(
                calibration, wanted - set(calibration.groups), seconds, limit_s
            )
            if not reason or not force:
                store_result(result)
            return result, reason
    except OSError as error:
        return calibration or empty_calibration(), (
            f"{error.filename or path()}: {error.strerror}; set PEARL_CACHE_DIR to another folder"
        )


def _resume_journal(calibration: Calibration | None, max_age_s: float | None = None) -> Calibration:
    """Add the findings of an unfinished measuring, or remove its journal if none is valid."""
    if findings := read_journal(max_age_s):
        return fit_journal(calibration, findings)
    journal_path().unlink(missing_ok=True)
    return calibration or empty_calibration()


def time_groups(
    calibration: Calibration,
    groups: set[str],
    seconds: float,
    limit_s: float,
    codes: Sequence[str] = (),
) -> tuple[Calibration, str]:
    """Time the missing points of `groups`; return the result, and why points are missing (or "").

    codes: only kernels with one of these codes (`code_of`) are timed, in this order; empty: all.
    """
    start_s, reason = time.monotonic(), ""
    if groups:
        request = {"groups": sorted(groups), "known": calibration.to_json(), "only": [*codes]}
        request["journal"] = str(journal_path())
        try:
            run_in_child("measure", seconds, timeout_s=limit_s, request=request)
        except CalibrationError as error:
            reason = str(error)
    return fit_journal(calibration, read_journal(), time.monotonic() - start_s), reason


def store_result(result: Calibration) -> None:
    """Store the calibration, then remove the journal, whose findings it contains."""
    if result.points or result.skipped:
        store(result)
    journal_path().unlink(missing_ok=True)


def check(calibration: Calibration, *, seconds: float = 8.0) -> list[HeldOutTiming]:
    """Time kernels that no fit has seen, in a child process, and compare the predictions."""
    request = calibration.to_json()
    rows = run_in_child("check", seconds, timeout_s=limit_of(seconds), request=request)
    return [HeldOutTiming(**row) for row in rows]


def untimed_codes(codes: Iterable[str]) -> list[str]:
    """Return the codes (`code_of`) among these that have kernels without a timing on this host."""
    calibration = load_usable() or empty_calibration()
    return [code for code in dict.fromkeys(codes) if _count_missing(calibration, [code])]


def time_codes(codes: Sequence[str], limit_s: float) -> tuple[int, int]:
    """Time the missing kernels of these codes, in this order, in a child process.

    Return how many kernels were timed, and how many are left. The child ends after limit_s.
    However it ends, its timings are stored.

    Raises:
        OSError: the folder of the calibration cannot be written.
    """
    with locking(limit_s) as locked:
        calibration = load_usable() or empty_calibration()
        before = _count_missing(calibration, codes)
        if not locked or not before:
            return 0, before
        calibration = _resume_journal(calibration)
        groups = {
            name
            for name in _groups_of_codes(codes)
            if any(code in codes for code, _, _ in points_of_group(name))
        }
        try:
            time_groups(calibration, groups, min(FEW_S, limit_s), limit_s, codes)
        finally:
            result = fit_journal(calibration, read_journal())
            store_result(result)
        left = _count_missing(result, codes)
        return before - left, left


def _groups_of_codes(codes: Iterable[str]) -> set[str]:
    """Groups of these codes, from their names: drawing the kernels of all groups takes a second."""
    names = ((*code.split(" "), "", "") for code in codes)
    return {group(f"{kind} {program}") for kind, _, program, *_ in names} & set(GROUPS)


def _count_missing(calibration: Calibration, codes: Sequence[str]) -> int:
    """Number of kernels of these codes that a complete calibration has and this one lacks."""
    timed = {p.key for p in calibration.points}
    return sum(
        code in codes and named not in calibration.skipped and key not in timed
        for name in _groups_of_codes(codes)
        for code, named, key in points_of_group(name)
    )
