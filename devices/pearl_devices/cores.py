"""The float32 flops per cycle of a CPU core, by its microarchitecture.

Flops per cycle = vector lanes × multiply-add units × 2. The flags of a CPU give its widest
instructions, but neither the width nor the number of its units: Zen 4 has AVX-512 on units of 256
bits. Units: Fog, "The microarchitecture of Intel, AMD, and VIA CPUs"; Arm's software
optimization guides; models: Linux, `arch/x86/include/asm/intel-family.h` and
`arch/arm64/include/asm/cputype.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


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

ARM = {
    0xD03: Core("Cortex-A53", 64, 1),
    0xD08: Core("Cortex-A72", 64, 2),
    0xD0B: Core("Cortex-A76", 128, 2),
    0xD0C: Core("Neoverse N1", 128, 2),
    0xD40: Core("Neoverse V1", 256, 2),
    0xD42: Core("Cortex-A78AE", 128, 2),
    0xD49: Core("Neoverse N2", 128, 2),
    0xD4F: Core("Neoverse V2", 128, 4),
}
"""Arm's part numbers → core."""

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
    if given("CPU implementer", 16) == 0x41 and (part := given("CPU part", 16)) in ARM:
        return ARM[part]
    for name, bits, units in BY_FLAGS:
        if name in flags:
            return Core(name, bits, units)
    return SCALAR


CLOCK_HZ = 2.5e9
"""Clock of a core that is not told and not listed (assumed)."""

APPLE = {
    "apple-m1": (Core("Apple M1", 128, 4), 3.2e9),
    "apple-m2": (Core("Apple M2", 128, 4), 3.5e9),
    "apple-m3": (Core("Apple M3", 128, 4), 4.05e9),
    "apple-m4": (Core("Apple M4", 128, 4), 4.4e9),
}
"""LLVM's name of a performance core → the core, and its clock in Hz. Units: Johnson, "Apple M1
Firestorm microarchitecture" (four pipes of 128 bits; assumed of later ones). Clocks: as the press
measured them; Apple states none (assumed)."""

LLVM_FEATURES = {"neon": "asimd"}
"""LLVM's name of an instruction set → the kernel's, where they differ."""


def core_of_llvm(name: str, features: Iterable[str]) -> Core:
    """Return the core that LLVM names, else one for the widest instruction set in `features`."""
    if name in APPLE:
        return APPLE[name][0]
    return core_of("", [LLVM_FEATURES.get(f, f) for f in features])


def clock_of(core: Core) -> tuple[float, str]:
    """Return the clock in Hz of a core whose system tells none, and its source."""
    for listed, clock_hz in APPLE.values():
        if listed == core:
            return clock_hz, f"assumed of {core.name}"
    return CLOCK_HZ, "assumed"
