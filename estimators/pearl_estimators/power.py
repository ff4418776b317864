"""Energy of a firing, modelled from a device's idle and active power."""

from __future__ import annotations

import math

from pearl_devices import Device, Kernel, backend
from pearl_estimators.gpu.queue import queue
from pearl_estimators.roofline import way

SOURCE = "energy modelled"
"""In the source of every estimate whose energy is this model's."""

BY_WIDTH = f"{SOURCE}: (active - waiting power) x share of width x occupancy"
BY_WORK = f"{SOURCE}: (active - waiting power) x the larger of arithmetic and memory utilisation"

BAND = 1.9
"""Watts are within a factor of this of the model, up or down, in 90 % of cases: all eight published
readings that no figure was taken from are, and five of them within 1.6, the band before
(`python -m benchmarks.estimators power`)."""


def by_work(device: Device) -> bool:
    """Whether a kind's draw follows its work: a GPU that waits for launches draws little more than
    one that waits for anything else."""
    return bool(getattr(backend(device.kind), "DRAWS_BY_WORK", False))


def firing_energy_j(
    kernel: Kernel, device: Device, width: int, occupancy_s: float, variant: str = ""
) -> float:
    """Joules above waiting of one firing that takes `width` units of `device` for occupancy_s.

    Modelled, never measured. A device that draws by its work is charged for the time that its
    arithmetic or its memory traffic would take at the data sheet's rates, whichever is longer;
    others, like CPUs, whose cores spin as hungrily as they compute, for the share of the width.
    variant: of torch's, every operator's traffic counts; else the kernel's own arrays.
    """
    if not by_work(device):
        return dynamic_energy_j(device, width, occupancy_s)
    moved = kernel.bytes_in + kernel.bytes_out
    if way(variant) in ("eager", "graph"):
        moved = queue(kernel, device, width, alone=False).bytes
    work_s = max(kernel.flops / device.sustained_flops_per_s, moved / device.memory_bytes_per_s)
    return (device.active_power_w - device.waiting_power_w) * min(work_s, occupancy_s)


def dynamic_energy_j(device: Device, width: int, occupancy_s: float) -> float:
    """Joules above waiting that `width` fully busy units of `device` draw in so many seconds."""
    share = width / device.width
    return (device.active_power_w - device.waiting_power_w) * share * occupancy_s


def energy_j(device: Device, seconds: float, busy_s: float) -> float:
    """Joules of the whole of `device` in `seconds` seconds, its units busy for busy_s of them, all
    added up: waiting power throughout, and the linear model above it.

    More than seconds · width busy cannot be; it counts as that.
    """
    busy = min(busy_s, seconds * device.width)
    return device.waiting_power_w * seconds + dynamic_energy_j(device, 1, busy)


def spread() -> float:
    """Standard deviation of the logarithm of the factor whose 90 % band is BAND."""
    return math.log(BAND) / 1.6449
