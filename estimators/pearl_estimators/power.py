"""Dynamic energy of a firing, modelled from a device's idle and active power."""

from __future__ import annotations

from pearl_devices import Device

SOURCE = "energy modelled: (active - idle power) x share of width x occupancy"


def dynamic_energy_j(device: Device, width: int, occupancy_s: float) -> float:
    """Joules above idle that `width` units of `device` draw while taken for occupancy_s seconds.

    A linear model: power rises from idle_power_w to active_power_w with the share of the width
    that is busy, whatever the kernel. It is modelled, never measured; `SOURCE` says so.
    """
    share = width / device.width
    return (device.active_power_w - device.idle_power_w) * share * occupancy_s


def energy_j(device: Device, seconds: float, busy_s: float) -> float:
    """Joules of the whole of `device` in `seconds` seconds, its units busy for busy_s of them, all
    added up: idle power throughout, and the same linear model above it.

    More than seconds · width busy cannot be; it counts as that.
    """
    busy = min(busy_s, seconds * device.width)
    return device.idle_power_w * seconds + dynamic_energy_j(device, 1, busy)
