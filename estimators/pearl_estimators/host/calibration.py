"""`Calibration`: measured costs of this host's kernels, and their JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pearl_devices import Kernel
from pearl_devices.compile_target import target_variables
from pearl_devices.system import host_system
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.interference import Shares
from pearl_estimators.host.linear_fit import Fit, Point, family, point, predict
from pearl_estimators.host.run_corrections import IterationStats, KernelShare
from pearl_estimators.sealed_files import CalibrationError, seal, unseal

SCHEMA = 1
SOURCES = (
    "benchmark_kernels",
    "calibrate_host",
    "calibration_updates",
    "features",
    "free_cores",
    "interference",
    "linear_fit",
    "random_kernels",
    "run_corrections",
    "timer",
)
"""Modules that determine the figures or the form of a calibration."""
MAPPINGS = ("host", "versions", "skipped", "runtime", "doubts", "upheld")
NOISY = 1.1
"""Slow-down while measuring above which the machine counts as shared (assumed)."""


class MeasuringTimeoutError(CalibrationError):
    """Measuring exceeded its time limit."""


class MeasuringDiedError(CalibrationError):
    """The process that measured has ended before it had a result."""


class CalibrationWarning(UserWarning):
    """A fact about the calibration that a plan's reader should know; planning continues."""


@dataclass(frozen=True)
class Calibration:
    """Measured costs of a host's kernels, by family and variant.

    Attributes:
        schema: version of the file's format.
        host: CPU model and cores.
        versions: of the libraries and of the kernels' sources.
        created: UTC, ISO 8601.
        wall_s: duration of measuring, in seconds.
        load: one-minute load average after measuring.
        contention: mean slow-down seen (wall over CPU time, slowest over fastest round). Above
            NOISY the machine was shared, and all bands are wider.
        fits: the models.
        skipped: family and variant → why there is no timing.
        runtime: costs of several lanes: `firing_s` of a lane for each firing, `handoff_s` from one
            lane to another, `carry_s_per_byte` of each lane for a byte sent. Empty without a
            runtime, or without two free cores.
        points: the timed kernels.
        groups: groups of `benchmark_kernels.GROUPS` with all points.
        apart_s: latency between cores, in seconds, at which calls on two cores were timed; their
            estimates hold for this latency. 0 without such calls.
        beside: slow-down of two kernels by each other, one on each core.
        doubts: family and variant → measured / estimated of a run that contradicted the estimate.
            On the next idle start these families are timed again.
        upheld: as doubts, of families that were timed again and had not changed. A run that is as
            far off raises no new doubt.
        again: UTC of the last repeated timing; empty for never.
        learned: times of finished runs, compared with these estimates.

    Raises:
        ValueError: a number is not finite, or below 0.
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
    beside: Shares = field(default_factory=dict)
    doubts: Mapping[str, float] = field(default_factory=dict)
    upheld: Mapping[str, float] = field(default_factory=dict)
    again: str = ""
    learned: tuple[IterationStats, ...] = ()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for name in MAPPINGS:
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        beside = {k: MappingProxyType(dict(row)) for k, row in dict(self.beside).items()}
        object.__setattr__(self, "beside", MappingProxyType(beside))
        numbers = {n: getattr(self, n) for n in ("wall_s", "load", "contention", "apart_s")}
        for of in ("runtime", "doubts", "upheld"):
            numbers |= {f"{of}.{name}": value for name, value in getattr(self, of).items()}
        for name, row in beside.items():
            numbers |= {f"beside.{name}.{other}": share for other, share in row.items()}
        for name, value in numbers.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"calibration: {name} is {value}; it must be finite, at least 0")

    @property
    def noisy(self) -> bool:
        """Whether the machine was shared during the measurement."""
        return self.contention > NOISY

    def find(self, kernel: Kernel, variant: str) -> Fit | None:
        """Return the fit of a kernel in a variant; None without one, and for a kernel with a
        user-defined network, of which the terms of the fit count no layer."""
        if kernel.modules:
            return None
        wanted = family(kernel), variant
        return next((fit for fit in self.fits if (fit.family, fit.variant) == wanted), None)

    def to_json(self) -> dict[str, Any]:
        """Return a plain object with a checksum over everything else."""
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in MAPPINGS:
            body[name] = dict(body[name])
        body["beside"] = {name: dict(row) for name, row in self.beside.items()}
        body["fits"] = [{**vars(fit), "costs": dict(fit.costs)} for fit in self.fits]
        body["points"] = [{**vars(each), "terms": dict(each.terms)} for each in self.points]
        body["learned"] = [asdict(each) for each in self.learned]
        body = json.loads(json.dumps(body, allow_nan=False))
        return seal(body)

    @classmethod
    def from_json(cls, value: object) -> Calibration:
        """Read an object of `to_json`.

        Raises:
            CalibrationError: the value is incomplete or edited, or has no numbers.
        """
        body = unseal(value, SCHEMA, "calibration")
        try:
            lists = {
                "fits": tuple(_read_fit(row) for row in body["fits"]),
                "points": tuple(Point(**row) for row in body["points"]),
                "groups": tuple(body["groups"]),
                "learned": tuple(_read_stats(row) for row in body.get("learned", ())),
            }
            return cls(**{**body, **lists})
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"calibration: {error}") from None


@dataclass(frozen=True)
class HeldOutTiming:
    """Predicted and measured seconds of a kernel that no fit has seen.

    variant: of the kernel.
    predicted_s, measured_s: seconds of a firing.
    kernel: family and sizes.
    low_s, high_s: the predicted 90 % band.
    """

    kernel: str
    variant: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def held(self) -> bool:
        """Whether the measured time is within the band."""
        return self.low_s <= self.measured_s <= self.high_s


def _read_fit(row: Mapping[str, Any]) -> Fit:
    return Fit(**{**row, "flops": tuple(row["flops"]), "bytes": tuple(row["bytes"])})


def _read_stats(row: Mapping[str, Any]) -> IterationStats:
    return IterationStats(**{**row, "parts": tuple(KernelShare(**p) for p in row["parts"])})


def estimate_from(
    fit: Fit, calibration: Calibration, kernel: Kernel, variant: str, host: str = ""
) -> Estimate:
    """Predict a kernel's time, with its 90 % band. host: the calibrated one; empty for this one."""
    guess = predict(fit, point(kernel, variant, 1.0))
    source = f"calibrated on {host or 'this host'} {calibration.created[:10]}, {fit.points} points"
    if guess.extrapolated:
        source += "; outside the calibrated sizes, band doubled"
    if doubt := calibration.doubts.get(f"{fit.family} {variant}"):
        source += f"; in doubt: a run took {doubt:.2f} x the estimate, timed again when quiet"
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
    """Return CPU model and cores, as far as the operating system reports them.

    If kernels are compiled for another CPU, `compiled for` names it.
    """
    target = {"compiled for": target_variables()} if target_variables() else {}
    return {"cpu": _cpu_model(), "cores": str(os.cpu_count() or 1), **target}


@cache
def _cpu_model() -> str:
    import platform

    chip = host_system.chip()
    lines = chip.listing.split("\n\n")[0].splitlines()
    pairs = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    names = ("model name", "cpu family", "model", "stepping")
    known = ", ".join(pairs[name] for name in names if name in pairs)
    return known or chip.model or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of everything that a kernel's time depends on, without importing it."""
    return dict(_versions())


@cache
def _versions() -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    result = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("pearl-toolkit", "numpy", "numba", "scipy", "torch", "gymnasium"):
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            result[name] = "absent"
    digest = hashlib.sha256()
    sources = [Path(__file__).with_name(f"{name}.py") for name in SOURCES]
    package = find_spec("pearl_devices.primitives")
    for folder in package.submodule_search_locations or () if package else ():
        sources += sorted(Path(folder).rglob("*.py"))
    for source in sources:
        digest.update(source.read_bytes())
    return {**result, "kernels": digest.hexdigest()[:16]}
