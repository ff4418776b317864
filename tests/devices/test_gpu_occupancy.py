"""Blocks of a kernel on one multiprocessor, as NVIDIA's occupancy calculator counts them."""

from __future__ import annotations

import pytest

from pearl_devices.gpu.nvrtc import ARCHITECTURES, Resources
from pearl_devices.gpu.occupancy import MULTIPROCESSORS, resident_blocks


@pytest.mark.parametrize(
    ("registers", "static", "threads", "dynamic", "blocks"),
    [
        (32, 0, 256, 0, 8),  # 64 warps
        (33, 0, 256, 0, 6),  # 33 registers are given as 40: 48 of 65,536
        (64, 0, 256, 0, 4),
        (255, 0, 256, 0, 1),
        (16, 0, 32, 0, 32),  # blocks
        (16, 1024, 64, 9 * 1024, 14),  # 11 KiB a block of 164
        (16, 0, 256, 163 * 1024, 1),
        (16, 1024, 256, 163 * 1024, 0),
        (255, 0, 1024, 0, 0),
    ],
)
def test_blocks_are_bounded_by_registers_warps_blocks_and_shared_memory(
    registers: int, static: int, threads: int, dynamic: int, blocks: int
) -> None:
    used = Resources(registers, 1, 0, 0, static)
    assert resident_blocks("sm_80", used, threads, dynamic) == blocks


def test_every_architecture_that_is_compiled_for_has_its_limits() -> None:
    assert set(MULTIPROCESSORS) == set(ARCHITECTURES)
    assert resident_blocks("sm_90a", Resources(16, 1, 0, 0, 0), 256, 227 * 1024) == 1
