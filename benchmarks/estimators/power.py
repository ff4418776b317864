"""Modelled watts of GPUs against published readings, each with the page that was read.

A reading names what was computed, so that the larger of arithmetic and memory utilisation is known:
work in float32 at a rate that stands there, bytes a second of a decoder's weights, or nothing at
all. The GPU-Util of nvidia-smi is not that figure: it is the share of time in which any kernel ran,
and at most the utilisation. Readings that have it alone stand in `BUSY`, beside the watts of the
model at no work and at work all that time.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Part
from benchmarks.estimators.published_cards import catalogued
from pearl_devices import Kernel
from pearl_estimators import power


@dataclass(frozen=True)
class Reading:
    """Watts that somebody read, a line of power_readings.csv.

    share: the larger of arithmetic and memory utilisation; GPU-Util where `use` says so.
    use: what of the model it was used for, or `held out`. share_from: how the share was computed.
    """

    device: str
    share: float
    watts: float
    what: str
    source: str
    use: str
    share_from: str


def read() -> list[Reading]:
    """The readings, in their order."""
    with Path(__file__).with_name("power_readings.csv").open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return [Reading(**row | {n: float(row[n]) for n in ("share", "watts")}) for row in rows]


READINGS = tuple(r for r in read() if r.use != "GPU-Util")
BUSY = tuple(r for r in read() if r.use == "GPU-Util")
"""Readings whose `share` is GPU-Util."""


def modelled(name: str, share: float) -> float:
    """Watts of a second of work at this share of the arithmetic of a GPU in use."""
    of = catalogued(name, "gpu")
    work = Kernel("work", flops=share * of.peak_flops_per_s)
    return of.waiting_power_w + power.firing_energy_j(work, of, of.width, 1.0)


def within(reading: Reading) -> bool:
    """Whether the model is within its band of a reading."""
    ratio = modelled(reading.device, reading.share) / reading.watts
    return 1 / power.BAND <= ratio <= power.BAND


def errors(readings: tuple[Reading, ...]) -> list[float]:
    """|modelled / read - 1| of each."""
    return [abs(modelled(r.device, r.share) / r.watts - 1) for r in readings]


def run(quick: bool, data: Path | None) -> Part:
    rows: list[list[Any]] = []
    for r in READINGS:
        watts = modelled(r.device, r.share)
        used = r.use if r.use == "held out" else f"used: {r.use}"
        figures = [f"{r.share:.2f}", f"{r.watts:g}", f"{watts:.0f}", f"{watts / r.watts:.2f}"]
        rows.append([r.device, *figures, used, r.what, r.source])
    for r in BUSY:
        least, most = modelled(r.device, 0.0), modelled(r.device, r.share)
        figures = [f"GPU-Util {r.share:.2f}", f"{r.watts:g}", f"{least:.0f} to {most:.0f}", ""]
        rows.append([r.device, *figures, "no utilisation", r.what, r.source])
    held = tuple(r for r in READINGS if r.use == "held out")
    found = errors(held)
    median, inside = float(np.median(found)), sum(map(within, held))
    bars = [
        Bar(
            f"watts held out: within the band of {power.BAND:g}", f"{inside} of {len(held)}",
            "at least 90 %", inside >= 0.9 * len(held),
        ),
    ]  # fmt: skip
    columns = ["GPU", "utilisation", "read, W", "modelled, W", "ratio", "use", "what", "source"]
    values = {"median": median, "errors": dict(zip((r.what for r in held), found, strict=True))}
    title = (
        f"Watts of GPUs, modelled beside read; of the {len(held)} held out half are within "
        f"{median:.0%}, the farthest is off by {max(found):.0%}"
    )
    return Part(title, columns, rows, bars, values=values)
