"""Modelled watts of GPUs against published readings, each with the page that was read.

A reading names what was computed, so that the larger of arithmetic and memory utilisation is known:
work in float32 at a rate that stands there, bytes a second of a decoder's weights, or nothing at
all. The GPU-Util of nvidia-smi is not that figure: it is the share of time in which any kernel ran,
and at most the utilisation. Readings that have it alone stand in `BUSY`, beside the watts of the
model at no work and at work all that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Part
from pearl.spec.catalogue import catalogue
from pearl.spec.platform_files import read_platform
from pearl_devices import Device, Kernel
from pearl_estimators import power


@dataclass(frozen=True)
class Reading:
    """Watts that somebody read.

    share: the larger of arithmetic and memory utilisation.
    sets: what of the model it was used for; "" if it was held out.
    """

    device: str
    share: float
    watts: float
    what: str
    source: str
    sets: str = ""


PAPER = "arXiv 2605.23918, table quoted in github.com/sgl-project/sglang, issue 27567"
CLUB = "github.com/noonghunna/club-3090, issue"
READINGS = (
    Reading("h100_sxm", 0.0, 121.7, "a context and no work", PAPER, "context_power"),
    Reading("a100_sxm_40gb", 0.0, 80.0, "a context and no work; 80 GB", PAPER, "context_power"),
    Reading("l40s", 0.0, 102.1, "a context and no work", PAPER, "context_power"),
    Reading("rtx_4090", 0.01, 68, "SAC, a kernel runs 25 % of the time",
        "github.com/araffin/sbx, issue 35", "context_power"),
    # 138 tokens/s of 4.4 GB of weights, of 1008 GB/s
    Reading("rtx_4090", 0.60, 246, "decoding a model of 4.4 GB", f"{CLUB} 697",
        "the first band, 1.6"),
    # 54.7 of 82.6 TFLOP/s without tensor cores (mli/transformers-benchmarks, issue 3)
    Reading("rtx_4090", 0.66, 380, "gpu-burn in float32", "github.com/wilicc/gpu-burn, issue 68",
        "the first band, 1.6"),
    Reading("v100_sxm_16gb", 0.0, 66, "a language model that waits, GPU-Util 100 %; 32 GB",
        "github.com/zai-org/GLM-130B, issue 32", "the first band, 1.6"),
    # 51.5 of 66.9 TFLOP/s; 580 to 650 W
    Reading("h100_sxm", 0.77, 615, "gpu-fryer in float32",
        "github.com/huggingface/gpu-fryer, issue 4"),
    Reading("h100_sxm", 0.0, 145, "73 GB held, GPU-Util 0 %",
        "github.com/wilicc/gpu-burn, issue 114"),
    Reading("v100_sxm_16gb", 0.0, 53, "a language model that waits, GPU-Util 0 %; 32 GB",
        "github.com/zai-org/GLM-130B, issue 32"),
    Reading("v100_sxm_16gb", 0.0, 61, "training that waits, GPU-Util 0 %; 32 GB",
        "github.com/hkust-nlp/PEM_composition, issue 5"),
    Reading("v100_pcie_32gb", 0.0, 40, "ollama without a request, 27 W without ollama",
        "github.com/ollama/ollama, issue 8591"),
    # at most 0.09, its GPU-Util; the middle is taken
    Reading("rtx_3090", 0.045, 115, "a server of four cards, GPU-Util 9 %, 250 W at most",
        f"{CLUB} 1127"),
    Reading("rtx_3090", 0.0, 130, "LM Studio without a model, 35 W without LM Studio",
        "github.com/lmstudio-ai/lmstudio-bug-tracker, issue 1403"),
    Reading("rtx_a6000", 0.0, 110, "a context and no work; of an A40, the same chip and limit",
        "github.com/NVIDIA/open-gpu-kernel-modules, issue 874"),
)  # fmt: skip

BUSY = (
    Reading("rtx_4090", 0.97, 136, "a policy of PPO played (test=True), Omniverse Isaac Gym",
        "github.com/isaac-sim/OmniIsaacGymEnvs, issue 46"),
    Reading("rtx_4090", 0.61, 84, "a policy of PPO played (test=True), Omniverse Isaac Gym",
        "github.com/isaac-sim/OmniIsaacGymEnvs, issue 46"),
    Reading("a100_sxm_40gb", 0.72, 125, "training in bfloat16; an A800, 80 GB",
        "github.com/dexmal/dexbotic, issue 41"),
)  # fmt: skip
"""Readings whose `share` is GPU-Util."""


def device(name: str) -> Device:
    """A GPU of the catalogue."""
    platform, _, problems = read_platform({"devices": {"gpu": dict(catalogue()[name])}})
    if platform is None:
        raise ValueError("; ".join(what for _, what in problems))
    return platform.devices[0]


def modelled(name: str, share: float) -> float:
    """Watts of a second of work at this share of the arithmetic of a GPU in use."""
    of = device(name)
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
        used = f"used: {r.sets}" if r.sets else "held out"
        figures = [f"{r.share:.2f}", f"{r.watts:g}", f"{watts:.0f}", f"{watts / r.watts:.2f}"]
        rows.append([r.device, *figures, used, r.what, r.source])
    for r in BUSY:
        least, most = modelled(r.device, 0.0), modelled(r.device, r.share)
        figures = [f"GPU-Util {r.share:.2f}", f"{r.watts:g}", f"{least:.0f} to {most:.0f}", ""]
        rows.append([r.device, *figures, "no utilisation", r.what, r.source])
    held = tuple(r for r in READINGS if not r.sets)
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
