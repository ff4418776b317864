"""The float32 flops per cycle of a CPU core, by its microarchitecture.

Flops per cycle = vector lanes × multiply-add units × 2. The flags of a CPU give its widest
instructions, but neither the width nor the number of its units: Zen 4 has AVX-512 on units of 256
bits. Units: Fog, "The microarchitecture of Intel, AMD, and VIA CPUs"; Arm's software
optimization guides; models: Linux, `arch/x86/include/asm/intel-family.h` and
`arch/arm64/include/asm/cputype.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True)
class Core:
    """A CPU core.

    name: of the microarchitecture, or of the instruction set if the microarchitecture is unknown.
    vector_bits: width of a multiply-add unit.
    units: multiply-add units.
    """

    name: str
    vector_bits: int
    units: int

    @property
    def flops_per_cycle(self) -> int:
        """float32 flops per cycle: two per vector lane and unit."""
        return 2 * self.units * (self.vector_bits // 32)


AMD = (
    (23, range(0x30), Core("Zen", 128, 2)),
    (23, range(0x30, 0x100), Core("Zen 2", 256, 2)),
    (25, (*range(0x10), *range(0x20, 0x60)), Core("Zen 3", 256, 2)),
    (25, (*range(0x10, 0x20), *range(0x60, 0x100)), Core("Zen 4", 256, 2)),
    (26, (*range(0x20, 0x30), *range(0x60, 0x80)), Core("Zen 5, mobile", 256, 2)),
    (26, range(0x100), Core("Zen 5", 512, 2)),
)
"""(family, models, core); the first row that matches."""

INTEL = (
    ((60, 63, 69, 70), Core("Haswell", 256, 2)),
    ((61, 71, 79, 86), Core("Broadwell", 256, 2)),
    ((78, 94, 142, 158, 165, 166), Core("Skylake, client", 256, 2)),
    ((85,), Core("Skylake, server", 512, 2)),
    ((106, 108), Core("Ice Lake, server", 512, 2)),
    ((125, 126), Core("Ice Lake, client", 512, 1)),
    ((140, 141), Core("Tiger Lake", 512, 1)),
    ((167,), Core("Rocket Lake", 512, 1)),
    ((143, 207), Core("Golden Cove, server", 512, 2)),
    ((173, 174), Core("Redwood Cove, server", 512, 2)),
    ((151, 154, 183, 186, 191), Core("Golden Cove, client", 256, 2)),
    ((170, 172), Core("Redwood Cove, client", 256, 2)),
    ((189, 197, 198), Core("Lion Cove", 256, 2)),
    ((190,), Core("Gracemont", 128, 2)),
    ((175,), Core("Crestmont", 128, 2)),
)
"""(models of family 6, core); for a hybrid CPU the performance core."""

CORTEX, COBALT, AMPERE, APPLES, QUALCOMM, FUJITSU = 0x41, 0x6D, 0xC0, 0x61, 0x51, 0x46
"""Implementers of cores with Arm's instructions, as the kernel numbers them."""

ARM = {
    (CORTEX, 0xD03): Core("Cortex-A53", 64, 1),
    (CORTEX, 0xD08): Core("Cortex-A72", 64, 2),
    (CORTEX, 0xD0B): Core("Cortex-A76", 128, 2),
    (CORTEX, 0xD0C): Core("Neoverse N1", 128, 2),
    (CORTEX, 0xD40): Core("Neoverse V1", 256, 2),
    (CORTEX, 0xD42): Core("Cortex-A78AE", 128, 2),
    (CORTEX, 0xD44): Core("Cortex-X1", 128, 4),
    (CORTEX, 0xD48): Core("Cortex-X2", 128, 4),
    (CORTEX, 0xD49): Core("Neoverse N2", 128, 2),
    (CORTEX, 0xD4E): Core("Cortex-X3", 128, 4),
    (CORTEX, 0xD4F): Core("Neoverse V2", 128, 4),
    (CORTEX, 0xD82): Core("Cortex-X4", 128, 4),
    (CORTEX, 0xD83): Core("Neoverse V3AE", 128, 4),
    (CORTEX, 0xD84): Core("Neoverse V3", 128, 4),
    (CORTEX, 0xD85): Core("Cortex-X925", 128, 6),
    (CORTEX, 0xD8C): Core("C1-Ultra", 128, 4),
    (CORTEX, 0xD8E): Core("Neoverse N3", 128, 2),
    (COBALT, 0xD49): Core("Neoverse N2", 128, 2),
    (AMPERE, 0xAC3): Core("Ampere 1", 128, 2),
    (AMPERE, 0xAC4): Core("Ampere 1A", 128, 2),
    (QUALCOMM, 0x001): Core("Oryon", 128, 4),
    (FUJITSU, 0x001): Core("A64FX", 512, 2),
    **{(APPLES, part): Core("Apple M1", 128, 4) for part in (0x023, 0x025, 0x029)},
    **{(APPLES, part): Core("Apple M1, efficient", 128, 2) for part in (0x022, 0x024, 0x028)},
    **{(APPLES, part): Core("Apple M2", 128, 4) for part in (0x033, 0x035, 0x039)},
    **{(APPLES, part): Core("Apple M2, efficient", 128, 2) for part in (0x032, 0x034, 0x038)},
}
"""(implementer, part) → core. Units: the models of LLVM, and for the Cortex-X, the C1-Ultra, Oryon
and the A64FX as remembered (assumed)."""

BY_FLAGS = (
    ("avx512f", 512, 2),
    ("fma", 256, 2),
    ("avx", 256, 1),
    ("asimd", 128, 2),
    ("sse2", 128, 1),
)
"""(instruction set, width, units) for an unlisted microarchitecture. Cores with narrower units, or
with only one unit, for AVX-512 are listed above."""

SCALAR = Core("scalar", 32, 1)


def core_of(cpuinfo: str, flags: list[str]) -> Core:
    """Return the core that `/proc/cpuinfo` describes, else one for the widest instruction set in
    `flags`."""

    def given(name: str, base: int = 10) -> int:
        found = re.search(rf"^{name}\s*:\s*(0x[0-9a-f]+|\d+)$", cpuinfo, re.MULTILINE)
        return int(found[1], base) if found else -1

    family, model = given("cpu family"), given("model")
    if "AuthenticAMD" in cpuinfo:
        for of_family, models, core in AMD:
            if family == of_family and model in models:
                return core
    if "GenuineIntel" in cpuinfo and family == 6:
        for models, core in INTEL:
            if model in models:
                return core
    if listed := [ARM[number] for number in arm_numbers(cpuinfo) if number in ARM]:
        return max(listed, key=lambda core: core.flops_per_cycle)  # small cores may stand first
    for name, bits, units in BY_FLAGS:
        if name in flags:
            return Core(name, bits, units)
    return SCALAR


def arm_numbers(cpuinfo: str) -> list[tuple[int, int]]:
    """Return (implementer, part) of each of Arm's cores that `/proc/cpuinfo` lists."""
    found = re.findall(
        r"^CPU implementer\s*:\s*(0x[0-9a-f]+)$.*?^CPU part\s*:\s*(0x[0-9a-f]+)$",
        cpuinfo,
        re.MULTILINE | re.DOTALL,
    )
    return [(int(implementer, 16), int(part, 16)) for implementer, part in found]


CLOCK_HZ = 2.5e9
"""Clock of a core that is not told and not listed (assumed)."""


@dataclass(frozen=True)
class Usual:
    """What a core usually has, for systems that do not say it: virtual machines of Arm servers tell
    no clock, macOS neither.

    clock_hz: of one busy core. l1d_bytes, l2_bytes: data caches of a core (Apple: of a cluster).
    source: the chip that has it.
    product_share, tanh_share, adam_share: the share of a core's peak that products, tanh and Adam
        reach, over that of the core whose costs scale data sheets.
    """

    clock_hz: float
    l1d_bytes: float
    l2_bytes: float
    source: str
    product_share: float = 1.0
    tanh_share: float = 1.0
    adam_share: float = 1.0


USUAL: Mapping[str, Usual] = {
    "Neoverse N1": Usual(2.5e9, 64 * KIB, MIB, "AWS Graviton2", 1.0, 0.6, 0.87),
    "Neoverse V1": Usual(2.6e9, 64 * KIB, MIB, "AWS Graviton3", 0.95, 0.77, 0.97),
    "Neoverse N2": Usual(3.4e9, 64 * KIB, MIB, "Microsoft Cobalt 100"),
    "Neoverse V2": Usual(2.8e9, 64 * KIB, 2 * MIB, "AWS Graviton4", 0.95, 0.56, 0.67),
    "Ampere 1": Usual(3.2e9, 64 * KIB, 2 * MIB, "AmpereOne"),
    "Ampere 1A": Usual(3.2e9, 64 * KIB, 2 * MIB, "AmpereOne M"),
    "A64FX": Usual(2.2e9, 64 * KIB, 8 * MIB, "Fujitsu A64FX"),
    "Apple M1": Usual(3.2e9, 128 * KIB, 12 * MIB, "Apple M1"),
    "Apple M2": Usual(3.5e9, 128 * KIB, 16 * MIB, "Apple M2"),
    "Apple M3": Usual(4.05e9, 128 * KIB, 16 * MIB, "Apple M3"),
    "Apple M4": Usual(4.4e9, 128 * KIB, 16 * MIB, "Apple M4"),
}
"""Core → its usual figures. Clocks and caches are recalled from the makers and the press (assumed);
Apple states no clocks. Shares: llvm-mca 19 on the code that kernels compile to, over
Zen 5, where the same loops were timed; 1 where LLVM has no model of the core."""

LLVM_NAMES: Mapping[str, Core] = {
    "neoverse-n1": ARM[CORTEX, 0xD0C],
    "neoverse-n2": ARM[CORTEX, 0xD49],
    "neoverse-n3": ARM[CORTEX, 0xD8E],
    "neoverse-v1": ARM[CORTEX, 0xD40],
    "neoverse-v2": ARM[CORTEX, 0xD4F],
    "neoverse-v3": ARM[CORTEX, 0xD84],
    "grace": ARM[CORTEX, 0xD4F],
    "ampere1": ARM[AMPERE, 0xAC3],
    "ampere1a": ARM[AMPERE, 0xAC4],
    "a64fx": ARM[FUJITSU, 0x001],
    "oryon-1": ARM[QUALCOMM, 0x001],
    "apple-m1": ARM[APPLES, 0x023],
    "apple-m2": ARM[APPLES, 0x033],
    "apple-m3": Core("Apple M3", 128, 4),
    "apple-m4": Core("Apple M4", 128, 4),
}
"""LLVM's name of a core, of Apple's chips the performance core → the core. Units of Apple's:
Johnson, "Apple M1 Firestorm microarchitecture" (four pipes of 128 bits; assumed of later ones)."""

LLVM_FEATURES = {"neon": "asimd"}
"""LLVM's name of an instruction set → the kernel's, where they differ."""


def core_of_llvm(name: str, features: Iterable[str]) -> Core:
    """Return the core that LLVM names, else one for the widest instruction set in `features`."""
    if name in LLVM_NAMES:
        return LLVM_NAMES[name]
    return core_of("", [LLVM_FEATURES.get(f, f) for f in features])


def clock_of(core: Core) -> tuple[float, str]:
    """Return the clock in Hz of a core whose system tells none, and its source."""
    if usual := USUAL.get(core.name):
        return usual.clock_hz, f"assumed of {core.name}: that of {usual.source}"
    return CLOCK_HZ, "assumed"


def caches_of(core: Core) -> tuple[dict[str, float], str]:
    """Return the bytes of the data caches of a core whose system tells none, and their source."""
    if usual := USUAL.get(core.name):
        sizes = {"l1d_bytes": float(usual.l1d_bytes), "l2_bytes": float(usual.l2_bytes)}
        return sizes, f"assumed of {core.name}: those of {usual.source}"
    return {}, ""


def shares_of(core: Core) -> dict[str, float]:
    """Return the shares of the peak that differ from the reference's, by their names."""
    usual = USUAL.get(core.name)
    names = ("product_share", "tanh_share", "adam_share")
    found = {name: getattr(usual, name) for name in names} if usual else {}
    return {name: share for name, share in found.items() if share != 1.0}
