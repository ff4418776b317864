"""Cards and CPUs of published figures: those of the catalogue by the names that sources use, and
others by their data sheets (recalled)."""

from __future__ import annotations

from pearl.spec.catalogue import catalogue
from pearl.spec.platform_files import read_platform
from pearl_devices import Device

NAMES = (
    ("a100-pcie", "a100_pcie_40gb"),
    ("a100", "a100_sxm_40gb"),
    ("h100", "h100_sxm"),
    ("h200", "h200_sxm"),
    ("b200", "b200"),
    ("v100", "v100_sxm_16gb"),
    ("l40s", "l40s"),
    ("4090", "rtx_4090"),
    ("5090", "rtx_5090"),
    ("4080", "rtx_4080"),
    ("3090", "rtx_3090"),
    ("a6000", "rtx_a6000"),
    ("tesla t4", "t4"),
    ("nvidia t4", "t4"),
    ("nvidia l4", "l4"),
)
"""Part of a name in lower case, entry of the catalogue; the first that fits."""

OTHERS: tuple[tuple[str, int, float, float, float, float], ...] = (
    ("4070 laptop", 36, 15.6e12, 256e9, 1.695e9, 32),
    ("4070 ti super", 66, 44.1e12, 672e9, 2.61e9, 48),
    ("4070", 46, 29.15e12, 504e9, 2.475e9, 36),
    ("5070 ti", 70, 43.9e12, 896e9, 2.452e9, 48),
    ("3080 ti", 80, 34.1e12, 912e9, 1.665e9, 6),
    ("3080", 68, 29.8e12, 760e9, 1.71e9, 5),
    ("2080 ti", 68, 13.45e12, 616e9, 1.545e9, 5.5),
    ("1660 ti", 24, 5.44e12, 288e9, 1.77e9, 1.5),
    ("a40", 84, 37.4e12, 696e9, 1.74e9, 6),
    ("a10", 80, 35.0e12, 600e9, 1.71e9, 6),
    ("a4000", 48, 19.2e12, 448e9, 1.56e9, 4),
    ("l40", 142, 90.5e12, 864e9, 2.49e9, 96),
    ("p104", 15, 6.66e12, 320e9, 1.733e9, 2),
    ("p100", 56, 9.5e12, 732e9, 1.328e9, 4),
    ("tu104", 40, 8.1e12, 320e9, 1.59e9, 4),
    ("titan v", 80, 14.9e12, 652e9, 1.455e9, 4.5),
    ("gv100", 80, 16.66e12, 870e9, 1.627e9, 6),
)
"""Part of a name, SMs, float32 flop/s, bytes/s, clock, MiB of L2."""

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
    ("m4 max", "apple_m4_max"),
)
BOOST_HZ = (
    ("8362", 3.6e9),
    ("8480", 3.8e9),
    ("14900k", 6.0e9),
    ("13900", 5.8e9),
    ("10940x", 4.6e9),
    ("9600x", 5.4e9),
    ("9800x3d", 5.2e9),
    ("9900k", 5.0e9),
    ("10700", 4.8e9),
)
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
    found = [e for part, e in NAMES if part in low and not (e == "l4" and "l40" in low)]
    others = [o for o in OTHERS if o[0] in low]
    if others and not (found and "gv100" not in low):
        _, sms, peak, bandwidth, hz, cache = others[0]
        figures = {"clock_hz": hz, "l2_bytes": cache * 2.0**20}
        return Device(
            "gpu", "gpu", sms, "sm", 1, peak_flops_per_s=peak, memory_bytes_per_s=bandwidth,
            overhead_s=5e-6, model=name, figures=figures,
        )  # fmt: skip
    return catalogued(found[0], "gpu") if found else None


def cpu(name: str) -> Device | None:
    """The CPU of the catalogue that a source names."""
    low = name.lower()
    return next((catalogued(entry, "cpu") for part, entry in CPUS if part in low), None)


def host(name: str) -> Device | None:
    """A CPU beside a card, of which the clock counts; None where it is not known."""
    found = cpu(name)
    if found is not None:
        return found
    for part, hz in BOOST_HZ:
        if part in name.lower():
            return Device("cpu", "cpu", figures={"clock_hz": hz})
    return None
