"""Every kernel that the device runs, in every variant: time, and its share of the roof."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.gpu.target import Case, Target, on_device
from pearl_devices import Kernel, offers
from pearl_devices.base import OPT_IN_VARIANTS
from pearl_devices.kernels import kind_of
from pearl_estimators.host.random_kernels import DRAWS, draw_kernels

LARGE = {"most_flops": 4e8, "most_steps": 8}
SMALL = {"most_flops": 3e6, "most_steps": 2}
"""On the stand-in, whose fibres compute a million flops in a second or so."""


def run(target: Target) -> list[Case]:
    return [case for kernel in kernels(target.stand_in) for case in _cases(target, kernel)]


def kernels(small: bool) -> Iterator[Kernel]:
    """One of every family."""
    sizes = SMALL if small else LARGE
    for name in DRAWS:
        yield next(draw_kernels([name], 7, **sizes))[1]  # type: ignore[arg-type]


def _cases(target: Target, kernel: Kernel) -> Iterator[Case]:
    device, kind = target.device, kind_of(kernel)
    for variant, width in offers(kernel, device):
        if variant in OPT_IN_VARIANTS:
            continue
        arrays, twins, memory, call = on_device(target, kernel, variant)
        before = {name: arrays[name].copy() for name in kind.written(arrays)}
        call()
        memory.store(tuple((arrays[n], twin) for n, twin in twins.items()))
        finite = all(np.isfinite(arrays[n]).all() for n in before)
        changed = sum(not np.array_equal(arrays[n], old) for n, old in before.items())
        seconds = target.seconds(call)
        roof_s = max(
            kernel.flops / (device.peak_flops_per_s * width / device.width),
            (kernel.bytes_in + kernel.bytes_out) / device.memory_bytes_per_s,
        )
        yield Case(
            f"{kernel.kind} {kernel.program or ''} {variant}".replace("  ", " "),
            finite and changed > 0,
            {"arrays_written": len(before), "arrays_changed": changed},
            target.figures(us=seconds and 1e6 * seconds, of_roof=seconds and roof_s / seconds),
        )
