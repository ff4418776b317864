"""Calibrated GPUs: operator fits of a GPU model, stored in a file, and kernel estimates from them.

A kernel of eager torch is a queue of operators. The host starts them one after another
(`variants`), and the GPU executes them one after another. So a firing takes the overhead of one
operator (start, and wait for the end) plus the longer of starting all and executing all. In a graph
the GPU starts them itself, which adds to its work. The operators are the matrix products of
`pearl_devices.kernels`; the other bytes of the kernel move at the rate of element-wise operators.
Hand-written kernels are no such operators: only their starts are known.
"""

from __future__ import annotations

import csv
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pearl_devices import Device, Kernel
from pearl_devices.gpu.nvml import nvml
from pearl_devices.kernels import kind_of
from pearl_estimators import sealed_files
from pearl_estimators.estimates import Bound, Estimate
from pearl_estimators.gpu.operators import (
    OPERATORS,
    POINTS,
    Guess,
    Operation,
    OperatorFit,
    choose_sizes,
    fit_operator,
    predict_operations,
)
from pearl_estimators.gpu.queue import RATES
from pearl_estimators.gpu.variants import (
    KERNEL_BAND,
    Copies,
    Starts,
    gpu_roofline,
    start_s,
    starts_of,
)
from pearl_estimators.roofline import base_variant
from pearl_estimators.sealed_files import CalibrationError, seal, unseal

SCHEMA = 1
COLUMNS = ("operator", "batch", "m", "k", "n", "streams", "seconds")
NEEDED = ("linear", "elementwise")  # the operators of all kernels
OF_OPERATORS = ("eager", "graph")  # variants that are queues of operators


@dataclass(frozen=True)
class GpuCalibration:
    """Cost of operators on one GPU model.

    schema: version of the file's format.
    model: as in `Device.model`.
    source: author and tool of the timings.
    created: UTC, ISO 8601.
    fits: one per operator.
    starts: of the variants; copies: between host and GPU; only if timed on this machine.
    driver: driver version of that machine; empty for timings from elsewhere.
    """

    model: str
    source: str
    created: str
    fits: tuple[OperatorFit, ...]
    starts: Starts | None = None
    copies: Copies | None = None
    driver: str = ""
    schema: int = SCHEMA

    def fit(self, operator: str) -> OperatorFit | None:
        """Return the fit of an operator, or None."""
        return next((each for each in self.fits if each.operator == operator), None)

    def to_json(self) -> dict[str, Any]:
        """Return a plain object with a checksum over everything else."""
        body: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return seal(body)

    @classmethod
    def from_json(cls, value: object) -> GpuCalibration:
        """Read an object of `to_json`.

        Raises:
            CalibrationError: the value is incomplete or edited, or has no numbers.
        """
        body = unseal(value, SCHEMA, "GPU calibration")
        try:
            starts = Starts(**body["starts"]) if body.get("starts") else None
            copies = Copies(**body["copies"]) if body.get("copies") else None
            fits = tuple(_fit_from(each) for each in body["fits"])
            return cls(**{**body, "fits": fits, "starts": starts, "copies": copies})
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"GPU calibration: {error}") from None


def _fit_from(each: Mapping[str, Any]) -> OperatorFit:
    lists = {name: tuple(each[name]) for name in ("weights", "reach", "low", "high")}
    lists["unidentified"] = tuple(each.get("unidentified", ()))
    return OperatorFit(**{**each, **lists, "places": tuple(map(tuple, each["places"]))})


def read_rows(path: str | Path) -> list[tuple[Operation, float]]:
    """Read timed operators from a CSV file with the columns of COLUMNS; seconds of one call.

    Raises:
        CalibrationError: a column is missing, a size is no whole number, or a time is not above 0;
            the text names file and line.
    """
    rows = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            absent = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
            if absent:
                raise CalibrationError(
                    f"{path}:1: no column {', '.join(absent)}; it must have {', '.join(COLUMNS)}"
                )
            for line in reader:
                try:
                    operation = Operation(
                        line["operator"],  # type: ignore[arg-type]
                        *(int(line[c]) for c in COLUMNS[1:-1]),
                    )
                    seconds = float(line["seconds"])
                    if not (math.isfinite(seconds) and seconds > 0):
                        raise ValueError(f"seconds is {seconds}; it must be finite and above 0")
                except (TypeError, ValueError) as error:
                    raise CalibrationError(f"{path}:{reader.line_num}: {error}") from None
                rows.append((operation, seconds))
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: cannot be read ({error})") from None
    return rows


def calibrate_gpu(
    model: str, multiprocessors: int, rows: Sequence[tuple[Operation, float]], source: str
) -> GpuCalibration:
    """Fit every operator in `rows` to POINTS of its sizes, spread over all of them.

    Raises:
        CalibrationError: an operator of NEEDED has no row.
    """
    fits = []
    for operator in OPERATORS:
        mine = [row for row in rows if row[0].operator == operator]
        if not mine:
            if operator in NEEDED:
                raise CalibrationError(
                    f"GPU {model}: no row of {operator}; kernels are made of {' and '.join(NEEDED)}"
                )
            continue
        taken = choose_sizes([o for o, _ in mine], min(POINTS, len(mine)))
        try:
            fits.append(
                fit_operator(
                    [mine[i][0] for i in taken], [mine[i][1] for i in taken], multiprocessors
                )
            )
        except ValueError as error:
            raise CalibrationError(f"GPU {model}: {error}") from None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return GpuCalibration(model, source, stamp, tuple(fits))


def path(model: str) -> Path:
    """Return the path of the calibration of a GPU model, next to that of the host."""
    from pearl_estimators.host.calibration_file import path as of_host

    name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return of_host().parent / f"gpu-{name}.json"


def store_gpu(calibration: GpuCalibration) -> Path:
    """Write the file completely or not at all; return its path."""
    file = path(calibration.model)
    sealed_files.store(file, calibration.to_json())
    return file


@cache
def driver_version() -> str:
    """Return the version of this machine's NVIDIA driver; empty without one."""
    pynvml = nvml()
    try:
        pynvml.nvmlInit()
        found = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    return found.decode() if isinstance(found, bytes) else str(found)


def load_gpu(model: str) -> GpuCalibration | None:
    """Return the stored calibration of a GPU model, or None.

    Raises:
        CalibrationError: the file is damaged.
    """
    way_out = "; delete it, or calibrate the GPU again from its timings"
    return sealed_files.load(path(model), GpuCalibration.from_json, way_out)


def calibrated_or_roofline(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Return the best estimate of a kernel on a GPU: calibrated if its model was timed, else
    roofline."""
    timed = load_gpu(device.model) if device.model else None
    if timed is None:
        return gpu_roofline(kernel, device, variant, width, starts_of(device))
    if device.real and timed.driver and timed.driver != driver_version():
        found = gpu_roofline(kernel, device, variant, width, starts_of(device))
        why = f"timed under driver {timed.driver}, this one is {driver_version() or 'unknown'}"
        return replace(found, source=f"{found.source}; {why}: pearl calibrate times it again")
    if base_variant(variant) not in OF_OPERATORS:
        return gpu_roofline(kernel, device, variant, width, timed.starts or starts_of(device))
    return estimate_gpu(timed, kernel, device, variant, width)


def estimate_gpu(
    found: GpuCalibration, kernel: Kernel, device: Device, variant: str, width: int
) -> Estimate:
    """Return the calibrated estimate of a kernel on `width` multiprocessors of the calibrated
    model.

    With a part of them the flop rates shrink in proportion; memory stays whole.

    Raises:
        CalibrationError: the calibration lacks the fit of an operator that the kernel uses.
    """
    linear, elementwise = found.fit("linear"), found.fit("elementwise")
    if linear is None or elementwise is None:
        raise CalibrationError(f"GPU {found.model}: no fit of {' or '.join(NEEDED)}")
    share = min(width / linear.multiprocessors, 1.0)
    linear = replace(linear, flops_per_s=linear.flops_per_s * share)
    shapes = [Operation("linear", 1, m, k, n) for m, k, n in kind_of(kernel).products(kernel)]
    guesses = predict_operations(linear, shapes) if shapes else []
    rounds = kind_of(kernel).rounds(kernel)
    moved = kernel.bytes_in + kernel.bytes_out
    rest_s = max(moved - rounds * sum(s.bytes for s in shapes), 0.0) / elementwise.bytes_per_s
    queue_s = rest_s + rounds * sum(g.work_s for g in guesses)
    starts = found.starts or starts_of(device)
    begin_s = start_s(kernel, device, variant, starts)
    if base_variant(variant) == "graph":  # the GPU starts the next operator itself
        products = rounds * len(shapes)
        others = max(kind_of(kernel).operations(kernel) - products, 0.0)
        begin_s += starts.gap_s * others + max(starts.gap_s, RATES.product_s) * products
    once_s = elementwise.overhead_s if not guesses else linear.overhead_s
    alone = (
        sum if base_variant(variant) == "graph" else max
    )  # in eager mode, starts and work overlap
    latency = once_s + alone((begin_s, queue_s))
    few, many = (rest_s + _worked(guesses, rounds, high) for high in (False, True))
    low = once_s + alone((begin_s / KERNEL_BAND.below, few))
    high = once_s + alone((begin_s * KERNEL_BAND.above, many))
    bound: Bound = "overhead"
    if queue_s > max(begin_s, once_s):
        by_compute = sum(g.work_s for g in guesses if g.bound_by != "memory") * rounds
        bound = "compute" if by_compute > 0.5 * queue_s else "memory"
    note = (
        "; sizes outside the timed ones, band doubled"
        if any(g.extrapolated for g in guesses)
        else ""
    )
    return Estimate(
        latency,
        low_s=min(low, latency),
        high_s=max(high, latency),
        rung="calibrated",
        bound_by=bound,
        source=f"operators of {found.model} ({found.source}); starts of {variant} "
        f"{'timed' if found.starts else 'assumed'}{note}",
    )


def _worked(guesses: Sequence[Guess], rounds: float, high: bool) -> float:
    """Seconds of all products at one end of their bands."""
    ends = [g.work_s * ((g.high_s if high else g.low_s) / g.seconds) for g in guesses]
    return rounds * sum(ends)
