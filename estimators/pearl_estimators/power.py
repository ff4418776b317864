"""Energy of a firing, modelled from a device's idle and active power."""

from __future__ import annotations

import math

from pearl_devices import Device, Kernel, backend, knows_kind
from pearl_devices.user_imports import import_function

SOURCE = "energy modelled"
"""Text in the source of every estimate whose energy comes from this model."""

BY_WIDTH = f"{SOURCE}: (active - waiting power) x share of width x occupancy"
BY_WORK = f"{SOURCE}: (active - waiting power) x the larger of arithmetic and memory utilisation"

BAND = 1.9
"""In 90 % of cases, watts are within this factor of the model, up or down. All eight published
readings that gave no figure are, and five of them within 1.6, the previous band
(`python -m benchmarks.estimators power`)."""


def draws_by_work(device: Device) -> bool | None:
    """Return whether a kind's power follows its work: a GPU that waits for launches draws little
    more than an idle one. None for a kind that is not known here and not described: nothing is
    imported to find out."""
    if device.draws_by_work is not None:
        return device.draws_by_work
    if not knows_kind(device.kind):
        return None
    return bool(getattr(backend(device.kind), "DRAWS_BY_WORK", False))


def formula(device: Device) -> str:
    """Return the text of the model that gives a device's energy."""
    return BY_WORK if draws_by_work(device) else BY_WIDTH


def firing_energy_j(
    kernel: Kernel, device: Device, width: int, occupancy_s: float, variant: str = ""
) -> float:
    """Return joules above waiting of one firing that takes `width` units of `device` for
    occupancy_s.

    The energy is modelled, never measured. For a device whose power follows its work, the model
    counts the time of its arithmetic or of its memory traffic at the data sheet's rates, whichever
    is longer. For others, such as CPUs, whose cores draw as much when they spin, it counts the
    share of the width.
    The kind may count that traffic by variant (`MOVED_BYTES`); else it is the kernel's own arrays.
    """
    if not draws_by_work(device):
        return dynamic_energy_j(device, width, occupancy_s)
    moved = _moved_bytes(kernel, device, variant, width)
    work_s = max(kernel.flops / device.sustained_flops_per_s, moved / device.memory_bytes_per_s)
    return (device.active_power_w - device.waiting_power_w) * min(work_s, occupancy_s)


def _moved_bytes(kernel: Kernel, device: Device, variant: str, width: int) -> float:
    counts = getattr(backend(device.kind), "MOVED_BYTES", None) if knows_kind(device.kind) else None
    if counts is None:
        return kernel.bytes_in + kernel.bytes_out
    count = counts if callable(counts) else import_function(counts)
    return float(count(kernel, device, variant, width))


def dynamic_energy_j(device: Device, width: int, occupancy_s: float) -> float:
    """Return joules above waiting that `width` fully busy units of `device` draw in occupancy_s."""
    share = width / device.width
    return (device.active_power_w - device.waiting_power_w) * share * occupancy_s


def energy_j(device: Device, seconds: float, busy_s: float) -> float:
    """Return joules of the whole of `device` in `seconds` seconds: waiting power throughout, and
    the linear model above it. busy_s: sum of its units' busy seconds.

    More than seconds · width busy seconds count as that.
    """
    busy = min(busy_s, seconds * device.width)
    return device.waiting_power_w * seconds + dynamic_energy_j(device, 1, busy)


def spread() -> float:
    """Return the standard deviation of the logarithm of the factor whose 90 % band is BAND."""
    return math.log(BAND) / 1.6449
