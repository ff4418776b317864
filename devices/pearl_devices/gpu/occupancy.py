"""How many blocks of a kernel one streaming multiprocessor holds at a time.

Limits and granularities: NVIDIA, "CUDA C++ Programming Guide", technical specifications by compute
capability, and the calculation of "CUDA Occupancy Calculator".
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_devices.gpu.nvrtc import Resources

WARP = 32
REGISTERS, REGISTERS_AT_A_TIME = 65_536, 256
"""Of one multiprocessor, and how many a warp is given at a time."""
RESERVED_BYTES, BYTES_AT_A_TIME = 1024, 128
"""Shared memory that the system takes of every block, and the granularity of it."""


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor: warps, blocks, and bytes of shared memory for all its blocks
    and for one."""

    warps: int
    blocks: int
    shared_bytes: int
    most_bytes: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 * 1024, 163 * 1024),
    "sm_90a": Multiprocessor(64, 32, 228 * 1024, 227 * 1024),
    "sm_100": Multiprocessor(64, 32, 228 * 1024, 227 * 1024),
}


def resident_blocks(
    architecture: str, used: Resources, threads: int, dynamic_bytes: int = 0
) -> int:
    """Blocks of a kernel that one multiprocessor holds; 0 where a block is too large for it.

    threads, dynamic_bytes: of a block; the latter its dynamic shared memory.
    """
    limit = MULTIPROCESSORS[architecture]
    warps = -(-threads // WARP)
    registers = _up(used.registers * WARP, REGISTERS_AT_A_TIME) * warps
    shared = used.shared_bytes + dynamic_bytes
    if shared > limit.most_bytes:
        return 0
    shared = _up(shared + RESERVED_BYTES, BYTES_AT_A_TIME)
    return min(
        limit.warps // warps,
        limit.blocks,
        REGISTERS // max(registers, 1),
        limit.shared_bytes // shared,
    )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
