"""Cards and CPUs of published figures: those of the catalogue by the names that sources use, and
others by their data sheets (recalled)."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from pearl.spec.catalogue import catalogue
from pearl.spec.platform_files import read_platform
from pearl_devices import Device

NAMES = {
    "a100-pcie": "a100_pcie_40gb", "a100 pcie": "a100_pcie_40gb", "a100": "a100_sxm_40gb",
    "a800": "a100_sxm_40gb", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200",
    "v100": "v100_sxm_16gb", "v100-pcie": "v100_pcie_32gb", "l40s": "l40s", "l4": "l4", "t4": "t4",
    "4090": "rtx_4090", "5090": "rtx_5090", "4080": "rtx_4080", "3090": "rtx_3090",
    "a6000": "rtx_a6000",
}  # fmt: skip
"""Word of a name in lower case, entry of the catalogue."""

with Path(__file__).with_name("published_cards.csv").open(encoding="utf-8") as _file:
    OTHERS = {row["name"]: row for row in csv.DictReader(_file)}
"""Word of a name → SMs, float32 TFLOP/s, GB/s, GHz, MiB of the second-level cache."""

STAND_INS = (("17.0 tflop/s", "a100_sxm_40gb"), ("ada", "rtx_4090"), ("", "a100_sxm_40gb"))
"""Cards that no source names: of 17 TFLOP/s at 2048 squared, of a generation, and any, where the
figure hardly depends on the card."""

CPUS = (
    ("7950x", "ryzen_9_7950x"),
    ("9950x", "ryzen_9_9950x"),
    ("7800x3d", "ryzen_7_7800x3d"),
    ("7763", "epyc_7763"),
    ("9654", "epyc_9654"),
    ("6326", "xeon_gold_6326"),
    ("13900k", "core_i9_13900k"),
    ("12700k", "core_i7_12700k"),
    ("m2", "apple_m2"),
    ("m4", "apple_m4_max"),
)
"""Word of a name, entry of the catalogue; any M4 has the cores of an M4 Max."""
X86 = "4 cpus in lightning studio"
"""A CPU that nobody names: any of the catalogue that is neither Apple's nor Arm's."""
BOOST_HZ = (
    ("8362", 3.6e9), ("8480", 3.8e9), ("14900k", 6.0e9), ("13900", 5.8e9), ("10940x", 4.6e9),
    ("9600x", 5.4e9), ("9800x3d", 5.2e9), ("9900k", 5.0e9), ("10700", 4.8e9), ("5950x", 4.9e9),
    ("5900x", 4.8e9), ("12900k", 5.2e9), ("8380", 3.4e9), ("8358", 3.4e9), ("6348", 3.5e9),
    ("8468", 3.8e9), ("7742", 3.4e9), ("7642", 3.3e9), ("3970x", 4.5e9),
)  # fmt: skip
"""Boost clocks of CPUs that stand beside a card alone."""


def catalogued(name: str, kind: str) -> Device:
    """A device of the catalogue."""
    platform, _, problems = read_platform({"devices": {kind: dict(catalogue()[name])}})
    if platform is None:
        raise ValueError("; ".join(what for _, what in problems))
    return platform.devices[0]


def card(name: str) -> Device | None:
    """The card that a source names, or a stand-in where it names none; None where nobody has
    described it here."""
    low = name.lower()
    if not low or low.startswith(("not ", "ada,")):
        return catalogued(next(entry for part, entry in STAND_INS if part in low), "gpu")
    words = [w for w in (*NAMES, *OTHERS) if _stands(w, low)]
    if not words:
        return None
    word = max(words, key=len)
    if word in NAMES:
        return catalogued(NAMES[word], "gpu")
    it = {figure: float(text) for figure, text in OTHERS[word].items() if figure != "name"}
    return Device(
        "gpu", "gpu", int(it["sms"]), "sm", 1, peak_flops_per_s=1e12 * it["tflops"],
        overhead_s=5e-6, model=name, memory_bytes_per_s=1e9 * it["gb_per_s"],
        figures={"clock_hz": 1e9 * it["ghz"], "l2_bytes": it["l2_mib"] * 2.0**20},
    )  # fmt: skip


def _stands(word: str, name: str) -> bool:
    """Whether a word stands in a name by itself; a number may follow letters."""
    before = "[0-9]" if word[0].isdigit() else "[a-z0-9]"
    return re.search(rf"(?<!{before}){re.escape(word)}(?![a-z0-9])", name) is not None


def cpus(name: str) -> list[Device]:
    """The CPUs of the catalogue that a source may mean; none where it says too little."""
    low = name.lower()
    named = [entry for part, entry in CPUS if part in low][:1]
    if low.startswith(X86):
        named = [entry for _, entry in CPUS if not entry.startswith("apple")]
    return [catalogued(entry, "cpu") for entry in named]


def host(name: str) -> Device | None:
    """A CPU beside a card, of which the clock counts; None where it is not known."""
    if found := cpus(name):
        return found[0]
    for part, hz in BOOST_HZ:
        if part in name.lower():
            return Device("cpu", "cpu", figures={"clock_hz": hz})
    return None
