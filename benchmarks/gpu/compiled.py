"""Every kernel in CUDA, compiled for three architectures: its registers, spills, shared memory, and
the warps that one multiprocessor holds of it. Needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.target import Case, Target
from pearl_devices.gpu.binding import bind_kernel, handwritten_variants, on_host
from pearl_devices.gpu.driver import HostDriver, Launch
from pearl_devices.gpu.nvrtc import ARCHITECTURES, compile_program
from pearl_devices.gpu.occupancy import WARP, resident_blocks
from pearl_devices.gpu.program import Program
from pearl_devices.kernels.examples import fill_arrays, loops

SMALL = ("sm_90a",)
Prepared = tuple[Program, str, int, int]
"""A program, one of its kernels, the threads of a block, and its dynamic shared memory."""


class Noting(HostDriver):
    """Launches nothing and notes what is prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[Prepared] = []

    def prepare_launch(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        threads = 1
        for size in block:
            threads *= size
        self.prepared.append((program, kernel, threads, shared_bytes))
        return lambda: None


def prepared() -> dict[str, list[Prepared]]:
    """Kernel and variant → the launches of one firing, of small training loops."""
    import torch

    found: dict[str, list[Prepared]] = {}
    for kernels in loops():
        arrays = fill_arrays(kernels)
        for kernel in kernels:
            for variant in handwritten_variants(kernel):
                driver = Noting()
                given = {
                    n: a if on_host(kernel, variant, n) else torch.from_numpy(a)
                    for n, a in arrays.items()
                }
                bind_kernel(kernel, variant, given, lambda driver=driver: driver)  # type: ignore[misc]
                found.setdefault(f"{kernel.kind} {variant}", driver.prepared)
    return found


def run(target: Target) -> list[Case]:
    return [
        _case(what, launch, architecture)
        for what, launches in prepared().items()
        for launch in dict.fromkeys(launches)
        for architecture in (SMALL if target.stand_in else ARCHITECTURES)
    ]


def _case(what: str, launch: Prepared, architecture: str) -> Case:
    program, kernel, threads, dynamic_bytes = launch
    used = compile_program(program, architecture).resources[kernel]
    blocks = resident_blocks(architecture, used, threads, dynamic_bytes)
    counts = {
        "registers": used.registers, "spill_bytes": used.spill_bytes,
        "shared_bytes": used.shared_bytes + dynamic_bytes, "barriers": used.barriers,
        "warps": blocks * -(-threads // WARP),
    }  # fmt: skip
    named = f"{what}: {kernel}, {architecture}"
    return Case(named, used.spill_bytes == 0 and blocks > 0, counts)
