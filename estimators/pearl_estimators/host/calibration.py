"""`Calibration`: measured costs of this host's kernels, and their JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pearl_devices import Kernel
from pearl_devices.compile_target import held_to
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.interference import Shares
from pearl_estimators.host.linear_fit import Fit, Point, family, point, predict
from pearl_estimators.host.run_corrections import IterationStats, KernelShare

SCHEMA = 1
SOURCES = (
    "benchmark_kernels",
    "calibrate_host",
    "features",
    "free_cores",
    "interference",
    "journal",
    "linear_fit",
    "random_kernels",
    "run_corrections",
    "timer",
)
"""Modules here on which the figures or the form of a calibration depend."""
MAPPINGS = ("host", "versions", "skipped", "runtime", "doubts", "upheld")
NOISY = 1.1  # slow-down while measuring above which the machine counts as shared, assumed


class CalibrationError(ValueError):
    """A stored calibration cannot be used, or the measuring failed; the text says what to do."""


class MeasuringTimeoutError(CalibrationError):
    """Measuring exceeded its time limit."""


class CalibrationWarning(UserWarning):
    """A fact about the calibration that a plan's reader should know; planning went on."""


class OutdatedError(CalibrationError):
    """A stored calibration is sound but of other versions; it is measured anew."""


@dataclass(frozen=True)
class Calibration:
    """Measured costs of this host's kernels, by family and variant.

    host: CPU model and cores.
    versions: of the libraries and of the kernels' sources.
    created: UTC, ISO 8601.
    wall_s: seconds that measuring took.
    load: one-minute load average after measuring.
    contention: mean slow-down seen (wall over CPU time, slowest over fastest round). Above 1.1 the
        machine was shared: `noisy`, and all bands are wider.
    fits: the models.
    skipped: family and variant → why it was not timed.
    runtime: cost of several lanes: `firing_s` of a lane for each firing, `handoff_s` from one lane
        to another, `carry_s_per_byte` of each for a byte between; empty where no runtime is
        installed, or two cores were not to be had.
    points: the timed kernels.
    groups: the complete ones of `benchmark_kernels.GROUPS`.
    apart_s: `core_latency` while calls on two cores were timed; their estimates hold for it. 0
        where there were none.
    beside: slow-down of calls on two cores by each other.
    doubts: family and variant → measured / estimated of a run that contradicted the estimate; timed
        again at the next quiet start.
    upheld: as doubts, of families that were timed again since and had not changed: a run as far off
        as then is no new doubt.
    again: UTC of the last repeated timing of points in doubt or timed under load; empty for never.
    learned: what finished runs took beside these estimates.
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
        for name in ("wall_s", "load", "contention", "apart_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"calibration: {name} is {value}; it must be finite, at least 0")
        beside = {k: MappingProxyType(dict(row)) for k, row in dict(self.beside).items()}
        object.__setattr__(self, "beside", MappingProxyType(beside))
        numbers = {
            f"{of}.{name}": value
            for of in ("runtime", "doubts", "upheld")
            for name, value in getattr(self, of).items()
        }
        for name, row in beside.items():
            numbers |= {f"beside.{name}.{other}": share for other, share in row.items()}
        for name, value in numbers.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"calibration: {name} is {value}; it must be finite, at least 0")

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
        for name in MAPPINGS:
            body[name] = dict(body[name])
        body["beside"] = {name: dict(row) for name, row in self.beside.items()}
        body["fits"] = [_plain_fit(each) for each in self.fits]
        body["points"] = [{**vars(each), "terms": dict(each.terms)} for each in self.points]
        body["learned"] = [asdict(each) for each in self.learned]
        body = json.loads(json.dumps(body, allow_nan=False))
        return sealed(body)

    @classmethod
    def from_json(cls, value: object) -> Calibration:
        """The inverse of `to_json`.

        Raises:
            CalibrationError: the value is incomplete, edited or holds no numbers.
        """
        body = unsealed(value, SCHEMA, "calibration")
        try:
            made = [_fit_from(each) for each in body["fits"]]
            points = tuple(Point(**each) for each in body["points"])
            more = {"groups": tuple(body["groups"]), "learned": _learned(body.get("learned", ()))}
            return cls(**{**body, "fits": tuple(made), "points": points, **more})
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"calibration: {error}") from None


@dataclass(frozen=True)
class HeldOutTiming:
    """One held-out kernel: predicted and measured seconds, and whether the band held it."""

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
        return self.low_s <= self.measured_s <= self.high_s


def _fit_from(each: dict[str, Any]) -> Fit:
    lists = {name: tuple(each[name]) for name in ("flops", "bytes")}
    return Fit(**{**each, **lists})


def _learned(rows: Iterable[Mapping[str, Any]]) -> tuple[IterationStats, ...]:
    return tuple(
        IterationStats(**{**row, "parts": tuple(KernelShare(**p) for p in row["parts"])})
        for row in rows
    )


def _plain_fit(fit: Fit) -> dict[str, Any]:
    found = {f.name: getattr(fit, f.name) for f in fields(fit)}
    return {**found, "costs": dict(fit.costs)}


def checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a checksum over everything else."""
    return {**body, "checksum": checksum(body)}


def unsealed(value: object, schema: int, what: str) -> dict[str, Any]:
    """The inverse of `sealed`.

    Raises:
        CalibrationError: the value is damaged, or of another schema.
    """
    if not isinstance(value, dict):
        raise CalibrationError(f"{what}: an object is needed, this is {value!r:.60}")
    if value.get("schema") != schema:
        raise CalibrationError(
            f"{what}: schema is {value.get('schema')!r}; this version reads {schema}"
        )
    body = {k: v for k, v in value.items() if k != "checksum"}
    if value.get("checksum") != checksum(body):
        raise CalibrationError(
            f"{what}: the checksum does not match; the file was edited or damaged"
        )
    return body


def estimate_from(
    found: Fit, calibration: Calibration, kernel: Kernel, variant: str, host: str = ""
) -> Estimate:
    """The calibrated rung: the fit's prediction with its 90 % band. host: the calibrated one, where
    it is another than this."""
    guess = predict(found, point(kernel, variant, 1.0))
    where = host or "this host"
    source = f"calibrated on {where} {calibration.created[:10]}, {found.points} points"
    if guess.extrapolated:
        source += "; outside the calibrated sizes, band doubled"
    if doubt := calibration.doubts.get(f"{found.family} {variant}"):
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
    """CPU model and cores, as far as the operating system tells, and what kernels are compiled for
    where that is not this CPU."""
    import platform

    model = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        wanted = ("model name", "cpu family", "model", "stepping")
        lines = listing.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        parts = [line.partition(":") for line in lines.splitlines()]
        pairs = {name.strip(): value.strip() for name, _, value in parts}
        model = ", ".join(pairs[name] for name in wanted if name in pairs) or model
    held = {"compiled for": held_to()} if held_to() else {}
    return {"cpu": model, "cores": str(os.cpu_count() or 1), **held}


def versions() -> dict[str, str]:
    """Versions of all that a kernel's time depends on; imports none of it."""
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
        sources += sorted(Path(folder).rglob("*.py"))
    for source in sources:
        digest.update(source.read_bytes())
    return {**found, "kernels": digest.hexdigest()[:16]}
