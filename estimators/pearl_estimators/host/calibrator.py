"""The calibration that an estimate rests on: this host's, or that of another node of a cluster.

Groups of kernels are timed when an estimate first needs them, and timed again if they are in
doubt.
"""

from __future__ import annotations

import calendar
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from pearl_devices import Device, Kernel, backend
from pearl_devices.base import uses_several_cores
from pearl_estimators.host.benchmark_kernels import (
    CORES,
    GROUPS,
    THREADS,
    group,
    threaded_families,
    timed_variant,
)
from pearl_estimators.host.calibration import Calibration, CalibrationWarning
from pearl_estimators.host.calibration_file import load_usable, locking, path, read_journal
from pearl_estimators.host.calibration_updates import (
    empty_calibration,
    fit_journal,
    merge_retimed,
    points_of_group,
)
from pearl_estimators.host.free_cores import share_had
from pearl_estimators.host.linear_fit import Point, family
from pearl_estimators.host.measuring import measured_calibration, store_result, time_groups
from pearl_estimators.host.timer import HELD

RETRY_S = 600.0
"""Pause before this process tries again to time a kernel that could not be timed (assumed)."""
RETIME_S, RETIME_LIMIT_S, RETIME_EVERY_S = 10.0, 60.0, 3600.0
"""Timing points again: target duration, limit, and least pause between two times."""

Measure = Callable[[Sequence[str]], tuple[Calibration, str]]
"""Measures groups of a host, as `measured_calibration` does for this one."""

MEASURED_BY: dict[str, Measure] = {}
"""Name of another host of the cluster → the function that measures there."""

_remote: dict[str, tuple[Calibration, frozenset[str]]] = {}
"""Host in MEASURED_BY → its calibration, and the groups that were requested."""
_no_timing: ContextVar[str] = ContextVar("no_timing", default="")
"""The reason why nothing of this host is timed now (`without_timing`); empty if timing is
allowed."""
_skipped: dict[str, tuple[float, str]] = {}
"""Group → when (monotonic seconds) it was skipped, and why."""
_checked: set[Path] = set()
"""Calibrations that this process has searched for points to time again."""


def _warn(text: str) -> None:
    warnings.warn(text, CalibrationWarning, stacklevel=3)


ESTIMATE = "pearl_estimators.cpu:estimate_cpu"
"""Estimator of the device kinds that this calibration is for."""


def is_calibrated(device: Device) -> bool:
    """Whether kernels of `device` are timed by the calibration of its host."""
    return device.real and backend(device.kind).ESTIMATE == ESTIMATE


def is_calibrated_here(device: Device) -> bool:
    """Whether kernels of `device` are timed by the calibration of this host."""
    return is_calibrated(device) and device.host not in MEASURED_BY


def calibration(device: Device, kernels: Iterable[Kernel] = ()) -> Calibration:
    """Return the calibration of a device's host for these kernels, timed now if need be.

    Nothing is timed within `without_timing`. If kernels cannot be timed within the limit, the next
    estimate level serves them for RETRY_S. On an idle host, points that were timed under load or
    are in doubt are timed again. A CalibrationWarning reports both.

    Raises:
        ValueError: the device is not a CPU of this host, nor of one in MEASURED_BY.
    """
    if is_calibrated(device) and device.host in MEASURED_BY:
        return _remote_calibration(device.host, needed_groups(kernels))
    if not is_calibrated_here(device):
        raise ValueError(
            f"device {device.name!r} (kind {device.kind}) is not a CPU of this host; only CPUs of "
            "this host are calibrated"
        )
    wanted = needed_groups(kernels) - set(skipped_groups())
    if not wanted:
        return load_usable() or empty_calibration()
    result, reason = measured_calibration(sorted(wanted))
    if reason:
        skip_groups(wanted - set(result.groups), reason)
        return result
    return _retime(result, wanted)


def set_remote_hosts(hosts: Mapping[str, Measure]) -> None:
    """Let these hosts measure themselves, and no others."""
    for entries in (MEASURED_BY, _remote):
        entries.clear()
    MEASURED_BY.update(hosts)


def _remote_calibration(host: str, wanted: set[str]) -> Calibration:
    """The calibration of a host in MEASURED_BY. Each of its groups is requested once."""
    result, requested = _remote.get(host, (empty_calibration(), frozenset[str]()))
    if not wanted <= requested:
        result, reason = MEASURED_BY[host](sorted(wanted))
        _remote[host] = result, requested | wanted
        if reason:
            _warn(f"host {host}: {reason}; kernels not timed there are estimated from data sheets")
    return result


@contextmanager
def without_timing(reason: str) -> Iterator[None]:
    """Within this context, time nothing of this host: the data sheet serves untimed kernels.

    reason: for the notes of plans.
    """
    token = _no_timing.set(reason)
    try:
        yield
    finally:
        _no_timing.reset(token)


def skipped_groups() -> dict[str, str]:
    """Return the groups that are not timed now, each with the reason."""
    if reason := _no_timing.get():
        return dict.fromkeys(GROUPS, reason)
    now_s = time.monotonic()
    return {name: why for name, (at_s, why) in _skipped.items() if now_s - at_s < RETRY_S}


def skip_groups(groups: Iterable[str], reason: str) -> None:
    """Leave the untimed kernels of these groups to the next estimate level for RETRY_S, and warn.

    The pause of groups that are skipped already does not start again.
    """
    fresh = sorted(set(groups) - set(skipped_groups()))
    if not fresh:
        return
    _skipped.update(dict.fromkeys(fresh, (time.monotonic(), reason)))
    _warn(
        f"{reason}; untimed kernels of {', '.join(fresh)} are estimated from the data sheet; "
        "`pearl calibrate` times them"
    )


def missing_groups(kernels: Iterable[Kernel]) -> list[str]:
    """Return the groups that an estimate of these kernels would time now."""
    stored = load_usable()
    return sorted(
        needed_groups(kernels) - set(stored.groups if stored else ()) - set(skipped_groups())
    )


def needed_groups(kernels: Iterable[Kernel]) -> set[str]:
    """Return the groups of `benchmark_kernels.GROUPS` that estimates of these kernels rest on."""
    return {"shared", *(group(family(kernel)) for kernel in kernels)} & set(GROUPS)


def is_untimed(calibration: Calibration, kernel: Kernel, variant: str) -> bool:
    """Whether a complete calibration times this kernel in this variant, and this one has not."""
    name, variant = family(kernel), timed_variant(variant)
    named, of = f"{name} {variant}", group(name)
    if named in calibration.skipped or calibration.find(kernel, variant):
        return False
    return any(each == named for _, each, _ in points_of_group(of)) or (
        variant == THREADS and name in threaded_families([of])
    )


def comparable_variants(
    calibration: Calibration, kernel: Kernel, variants: Sequence[str]
) -> list[str]:
    """Return the variants, of those offered on a CPU of this host, that a plan may choose from.

    Untimed variants are left out: the error of a datasheet estimate exceeds the difference between
    variants. If all are untimed, the first stays, which is the backend's own preference.
    """
    timed = [v for v in variants if not is_untimed(calibration, kernel, v)]
    return timed or list(variants[:1])


# ---------------------------------------------------------------------- timed again


def cores_are_idle(cores: int) -> bool:
    """Whether this many cores are free now."""
    return share_had(cores) >= 1 / HELD


def _retime(calibration: Calibration, wanted: set[str]) -> Calibration:
    """Time again the points of `wanted` that are in doubt or were timed under load.

    The missing costs of lanes and of torch's threads are timed too. This happens only on an idle
    host, once per process, and at most every RETIME_EVERY_S.
    """
    file = path()
    if file in _checked:
        return calibration
    _checked.add(file)
    due = [p for p in _due(calibration) if group(p.family) in wanted]
    lanes = CORES > 1 and not calibration.runtime
    timed = {p.named for p in calibration.points} | set(calibration.skipped)
    threads = {group(n) for n in threaded_families(wanted) if f"{n} {THREADS}" not in timed}
    if not (due or lanes or threads) or _is_recent(calibration.again):
        return calibration
    several = lanes or threads or any(uses_several_cores(p.variant) for p in due)
    if not cores_are_idle(2 if several else 1):
        return calibration
    counts = {
        "timed under load": sum(p.loaded for p in due),
        "contradicted by a run": sum(p.named in calibration.doubts and not p.loaded for p in due),
    }
    parts = [f"{n} kernels {why}" for why, n in counts.items() if n]
    parts += ["the costs of lanes"] if lanes else []
    parts += ["threads of torch"] if threads else []
    _warn(f"this host is idle: timing again {', '.join(parts)}, up to {RETIME_LIMIT_S:.0f} s")
    result = calibration
    try:
        with locking(RETIME_LIMIT_S) as locked:
            if not locked:
                return calibration
            rest = replace(calibration, points=tuple(p for p in calibration.points if p not in due))
            groups = {group(p.family) for p in due} | threads or {"shared"}
            _, reason = time_groups(rest, groups, RETIME_S, RETIME_LIMIT_S)
            result = merge_retimed(calibration, fit_journal(calibration, read_journal()))
            store_result(result)
    except OSError as error:
        reason, result = f"{error.filename or file}: {error.strerror}", calibration
    if reason:
        _warn(f"{reason}; kernels not timed again keep their old timings")
    return result


def needs_retiming(kernels: Iterable[Kernel]) -> bool:
    """Whether the cost of lanes, or a point of these kernels' estimates, must be timed again."""
    calibration, wanted = load_usable(), needed_groups(kernels)
    if calibration is None or _no_timing.get():
        return False
    lanes = CORES > 1 and not calibration.runtime
    return lanes or any(group(p.family) in wanted for p in _due(calibration))


def _due(calibration: Calibration) -> Iterator[Point]:
    """Points that were timed under load or are in doubt."""
    return (p for p in calibration.points if p.loaded or p.named in calibration.doubts)


def _is_recent(stamp: str) -> bool:
    if not stamp:
        return False
    then = calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
    return abs(time.time() - then) < RETIME_EVERY_S
