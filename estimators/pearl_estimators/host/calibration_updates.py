"""Updates of a calibration by new evidence: timings, repeated timings, and finished runs."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

from pearl_estimators.host.benchmark_kernels import (
    GROUPS,
    code_of,
    draw_fit_kernels,
    offered_variants,
)
from pearl_estimators.host.calibration import NOISY, Calibration, CalibrationWarning, host, versions
from pearl_estimators.host.calibration_file import load_usable, locking, path, store
from pearl_estimators.host.linear_fit import Point, fit_variants, point
from pearl_estimators.host.run_corrections import NEWS, IterationStats, add_run
from pearl_estimators.sealed_files import CalibrationError

Key = tuple[Any, ...]

CHANGED = 1.15
"""A host whose times differ by more than this factor has changed (assumed)."""
WAIT_S = 2.0
"""Longest wait for a process that measures. After this time, the run is not stored."""


def empty_calibration() -> Calibration:
    """Return a calibration of this host without any point."""
    return Calibration(host(), {}, "", 0.0, 0.0, 1.0, ())


@cache
def points_of_group(name: str) -> tuple[tuple[str, str, Key], ...]:
    """Return `code_of`, `Point.named` and `Point.key` of every kernel that is timed for a group."""
    jobs = [(kernel, v) for kernel in draw_fit_kernels([name]) for v in offered_variants(kernel)]
    points = [point(kernel, v, 1.0) for kernel, v in jobs]
    return tuple((code_of(*job), p.named, p.key) for job, p in zip(jobs, points, strict=True))


# ---------------------------------------------------------------------- timings


def fit_journal(
    calibration: Calibration | None, findings: Iterable[Mapping[str, Any]], wall_s: float = 0.0
) -> Calibration:
    """Add the findings of a journal to a calibration, and fit all points.

    If both have a point, the newer timing counts, unless it was made under load and the older one
    had more of the CPU. `groups` becomes the list of groups with all points. wall_s: duration of
    measuring.

    Raises:
        CalibrationError: a finding does not fit.
    """
    base = calibration or empty_calibration()
    points = {p.key: p for p in base.points}
    newer: dict[Key, Point] = {}
    rest: dict[str, Any] = {"skipped": dict(base.skipped)}
    for finding in findings:
        if "point" in finding:
            timed = Point(**finding["point"])
            newer[timed.key] = timed
        if "skipped" in finding:
            rest["skipped"] |= finding["skipped"]
        rest |= {n: finding[n] for n in ("runtime", "beside", "apart_s") if n in finding}
    for key, timed in newer.items():
        if key not in points or not timed.loaded or timed.share >= points[key].share:
            points[key] = timed
    used = tuple(p for p in points.values() if p.named not in rest["skipped"])
    slowed = [s for p in used for s in (p.unsteady, 1 / p.share)]
    contention = sum(slowed) / len(slowed) if slowed else 1.0
    try:
        fits = fit_variants(used)
        if contention > NOISY:
            fits = [replace(each, band=each.band * contention) for each in fits]
        return replace(
            base,
            versions=versions(),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            wall_s=base.wall_s + wall_s,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            contention=contention,
            fits=tuple(fits),
            points=used,
            groups=tuple(g for g in GROUPS if _is_complete(g, points, rest["skipped"])),
            **rest,
        )
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"measuring this host failed: {error}") from None


def _is_complete(name: str, points: Mapping[Key, Point], skipped: Mapping[str, str]) -> bool:
    return all(key in points or named in skipped for _, named, key in points_of_group(name))


# ---------------------------------------------------------------------- repeated timings


def merge_retimed(before: Calibration, after: Calibration) -> Calibration:
    """Return `after`, whose points were timed again, without the doubts that the timings answer.

    A doubt is answered if all points of its family were timed again, none of them under load. If
    the family has not changed, its doubt is upheld: a run that is as far off raises no new doubt.
    """
    old = {p.key: p for p in before.points}
    doubts, upheld = dict(after.doubts), dict(after.upheld)
    for name, factor in before.doubts.items():
        points = [p for p in after.points if p.named == name and p.key in old]
        if any(p.loaded or p == old[p.key] for p in points):
            continue
        del doubts[name]
        upheld.pop(name, None)
        if points and _are_alike(median(p.seconds / old[p.key].seconds for p in points), 1.0):
            upheld[name] = factor
    learned = tuple(s for s in before.learned if not _is_outdated(s, before, after))
    return replace(after, doubts=doubts, upheld=upheld, again=after.created, learned=learned)


def _is_outdated(stats: IterationStats, before: Calibration, after: Calibration) -> bool:
    """Return whether a family of this iteration now takes another time.

    Then earlier runs were compared with estimates that are no longer valid.
    """
    old = {p.key: p.seconds for p in before.points}
    for named in {p.named for p in stats.parts}:
        points = [p for p in after.points if p.named == named and p.key in old]
        ratios = [p.seconds / old[p.key] for p in points if p.seconds != old[p.key]]
        if ratios and abs(math.log(median(ratios))) > NEWS:
            return True
    return False


def _are_alike(a: float, b: float) -> bool:
    return max(a, b) <= CHANGED * min(a, b)


# ---------------------------------------------------------------------- finished runs


def mark_doubtful(factors: Mapping[str, float]) -> list[str]:
    """Mark families whose estimates a run contradicts, to be timed again; return the new marks.

    A family is not marked if it was timed again for such a factor and had not changed.

    factors: family and variant → measured / estimated seconds.
    """
    if not factors or load_usable() is None:
        return []
    with _reporting_os_errors("the run's doubts are not stored"), locking(WAIT_S) as locked:
        calibration = load_usable()
        if calibration is None or not locked:
            return []
        fitted = {f"{f.family} {f.variant}" for f in calibration.fits}
        answers = (calibration.upheld, calibration.doubts)
        fresh = {
            name: factor
            for name, factor in factors.items()
            if name in fitted
            and not any(name in old and _are_alike(factor, old[name]) for old in answers)
        }
        if fresh:
            store(replace(calibration, doubts={**calibration.doubts, **fresh}))
        return sorted(fresh)
    return []


def record_run(stats: IterationStats) -> bool:
    """Store the times of a run, compared with its uncorrected estimates.

    Without a calibration the run is stored in one without points. Returns whether the run was
    stored: not if it tells nothing new, or if the file cannot be written.
    """
    with _reporting_os_errors("the times of the run are not stored"), locking(WAIT_S) as locked:
        if not locked:
            return False
        calibration = load_usable() or fit_journal(None, ())
        learned = add_run(calibration.learned, stats)
        if learned == calibration.learned:
            return False
        store(replace(calibration, learned=learned))
        return True
    return False


@contextmanager
def _reporting_os_errors(consequence: str) -> Iterator[None]:
    """Within this context, turn an OSError into a CalibrationWarning."""
    try:
        yield
    except OSError as error:
        warnings.warn(
            f"{error.filename or path()}: {error.strerror}; {consequence}",
            CalibrationWarning,
            stacklevel=4,
        )
