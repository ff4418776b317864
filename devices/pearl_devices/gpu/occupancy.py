"""The number of blocks of a kernel that one streaming multiprocessor holds at a time.

Limits and granularities: NVIDIA, "CUDA C++ Programming Guide", technical specifications by compute
capability, and the calculation of "CUDA Occupancy Calculator".
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_devices.gpu.nvrtc import Resources

WARP = 32
REGISTERS, REGISTERS_AT_A_TIME = 65_536, 256
"""Registers of one multiprocessor, and the granularity in which warps get them."""
RESERVED_BYTES, BYTES_AT_A_TIME = 1024, 128
"""Shared memory that the system reserves per block, and its granularity."""


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor: warps, blocks, and bytes of shared memory for all its blocks
    and for one block."""

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
    """Return the blocks of a kernel that one multiprocessor holds; 0 if a block is too large.

    threads: of a block. dynamic_bytes: dynamic shared memory of a block.
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
