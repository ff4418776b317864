"""The journal of a measuring: a line for every timed kernel, and the calibration that they make.

The process that measures appends to a file beside the calibration. A line is whole or does not
count, so an end of any kind, Ctrl-C, a time limit or a power cut, costs at most the kernel in hand.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pearl_estimators.host.benchmark_kernels import (
    GROUPS,
    THREADS,
    group,
    threaded,
    training,
    variants,
)
from pearl_estimators.host.calibration import (
    NOISY,
    Calibration,
    CalibrationError,
    checksum,
    host,
    sealed,
    unsealed,
    versions,
)
from pearl_estimators.host.linear_fit import Point, fitted, point

SCHEMA = 1
Key = tuple[Any, ...]
Tell = Callable[[Mapping[str, Any]], None]
"""Takes one finding: one of `point` (a Point's fields), `skipped` (family and variant → why),
`apart_s`, `runtime` and `beside` (fields of Calibration)."""


def journal_of(calibration: Path) -> Path:
    """Path of the journal of the calibration at `file`."""
    return calibration.with_suffix(".journal")


def _made_by() -> str:
    """Host and versions that a line must bear to count."""
    return checksum({"host": host(), "versions": versions()})[:16]


def journal_writer(file: Path) -> Tell:
    """Appends findings to the journal."""
    made_by = _made_by()

    def tell(found: Mapping[str, Any]) -> None:
        line = json.dumps(sealed({"schema": SCHEMA, "made_by": made_by, **found}), allow_nan=False)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)

    return tell


def read_journal(file: Path, newest_s: float | None = None) -> list[dict[str, Any]]:
    """The findings in the journal, oldest first.

    Lines that are cut, damaged or of another host or version are left out.
    newest_s: none of a journal whose last line is older than this.
    """
    try:
        if newest_s is not None and time.time() - file.stat().st_mtime > newest_s:
            return []
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    made_by, found = _made_by(), []
    for line in lines:
        try:
            body = unsealed(json.loads(line), SCHEMA, "journal")
            if "point" in body:
                Point(**body["point"])
        except (ValueError, TypeError, RecursionError):
            continue
        if body.pop("made_by", None) == made_by:
            found.append(body)
    return found


@cache
def _asked(of: str) -> tuple[tuple[str, Key], ...]:
    """Family and variant, and `Point.key`, of every point of a group."""
    points = (point(k, v, 1.0) for k in training([of]) for v in variants(k))
    return tuple((p.named, p.key) for p in points)


def timeable(of: str) -> frozenset[str]:
    """Every family and variant of a group, as `Point.named`, that a calibration of this host
    times."""
    threads = {f"{name} {THREADS}" for name in threaded([of])}
    return frozenset(threads.union(named for named, _ in _asked(of)))


def group_of(of: Point) -> str:
    """The group of `benchmark_kernels.GROUPS` that a point belongs to."""
    return group(of.family)


def gathered(
    known: Calibration | None, findings: Iterable[Mapping[str, Any]], wall_s: float = 0.0
) -> Calibration:
    """`known` and the findings of a journal, fitted.

    Of a point in both the newer timing counts, unless it was made under load and the older had more
    of the CPU. `groups` become those that lack nothing. wall_s: duration of measuring.
    """
    points = {p.key: p for p in known.points} if known else {}
    newer: dict[Key, Point] = {}
    rest: dict[str, Any] = {"skipped": dict(known.skipped) if known else {}}
    for found in findings:
        if "point" in found:
            timed = Point(**found["point"])
            newer[timed.key] = timed
        if "skipped" in found:
            rest["skipped"] |= found["skipped"]
        rest |= {name: found[name] for name in ("runtime", "beside", "apart_s") if name in found}
    for key, timed in newer.items():
        if key not in points or not timed.loaded or timed.share >= points[key].share:
            points[key] = timed
    kept = tuple(p for p in points.values() if p.named not in rest["skipped"])
    slowed = [s for p in kept for s in (p.unsteady, 1 / p.share)]
    contention = sum(slowed) / len(slowed) if slowed else 1.0
    try:
        fits = fitted(kept)
        if contention > NOISY:
            fits = [replace(each, band=each.band * contention) for each in fits]
        base = known or empty()
        return replace(
            base,
            versions=versions(),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            wall_s=base.wall_s + wall_s,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            contention=contention,
            fits=tuple(fits),
            points=kept,
            groups=tuple(g for g in GROUPS if _whole(g, points, rest["skipped"])),
            **rest,
        )
    except (TypeError, ValueError) as error:
        raise CalibrationError(f"measuring this host failed: {error}") from None


def _whole(of: str, points: Mapping[Key, Point], skipped: Mapping[str, str]) -> bool:
    return all(key in points or named in skipped for named, key in _asked(of))


def empty() -> Calibration:
    """A calibration of this host without any point."""
    return Calibration(host(), {}, "", 0.0, 0.0, 1.0, ())
