"""The vector registers of the processor that kernels are compiled for.

The processor's features determine them. If only its name is given, the registers are read from code
that LLVM generates for that name.
"""

from __future__ import annotations

import re

from llvmlite import binding

from pearl_devices.primitives.numba_internals import config, get_host_cpu_features

PROBE = """
define void @probe(ptr %at) {
  %value = load <16 x float>, ptr %at
  %new = fadd <16 x float> %value, %value
  store <16 x float> %new, ptr %at
  ret void
}
"""
REGISTERS = (("zmm", "+avx512f", 16, 32), ("ymm", "+avx", 8, 16), ("xmm", "+sse2", 4, 16))
"""Register name in x86 assembly, the feature that has it, float32 elements, number of registers."""
NEON = 4, 32
"""Float32 elements and number of Arm's `v` registers."""


def target() -> tuple[str, str]:
    """Return name and features of the processor that numba compiles for."""
    name = config.CPU_NAME or binding.get_host_cpu_name()  # type: ignore[attr-defined]
    given = config.CPU_FEATURES  # type: ignore[attr-defined]
    return str(name), str(get_host_cpu_features() if given is None else given)


def registers(name: str, features: str, triple: str | None = None) -> tuple[int, int]:
    """Return float32 elements of a vector register, and the number of registers.

    triple: of the machine code; None: this process's.
    """
    given = set(features.split(","))
    for _, feature, elements, count in REGISTERS:
        if feature in given:
            return elements, count
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    found = binding.Target.from_triple(triple or binding.get_process_triple())
    machine = found.create_target_machine(cpu=name, features=features, opt=2)
    text = machine.emit_assembly(binding.parse_assembly(PROBE))
    for register, _, elements, count in REGISTERS:
        if re.search(rf"%{register}\d", text):
            return elements, count
    return NEON


LANES, _COUNT = registers(*target())
"""Elements of a vector."""
ROWS = 8 if _COUNT == 32 else 6
"""Rows of the largest tile. With two vectors per row, this many sums hide the latency of their
additions and leave registers for the factors: 16 of 32, 12 of 16."""
SUMS = 2 * ROWS
"""Vectors of sums that a block keeps in registers."""
STRIP = 2 * LANES
"""Columns of the widest tile."""
BY_LANE = (LANES, _COUNT) == NEON
"""Whether an instruction multiplies by one lane of a vector, so that a load to all lanes, which
takes a slot of the multiply units on Arm's cores, can be left out."""
DOT_PARTS, SQUARE_PARTS = 16, 64
"""Parts of the sums over neighbouring elements: the same on every host, so that its vectors decide
no bit. With 16, a dot product keeps one vector of AVX-512 busy and leaves registers for 3 rows by 2
columns of AVX2. With 64, four vectors of AVX-512 hide the latency of additions."""
