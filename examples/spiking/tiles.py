"""A machine of many tiles with memory of their own and programs of their own (MIMD), as a device.

Simulated: nothing runs on such a machine here. A tile holds a slice of the weights and of the
optimizer's state; there is no launch cost, because a program lies on the tiles. A firing takes its
work over the tiles that have work, and the exchange of what tiles send each other. The model counts
a multiplication with a spike like any other.
"""

from __future__ import annotations

from pearl_devices import Refused
from pearl_devices.base import Buffers, Call, Device
from pearl_devices.device_kind import FiringCost
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of

WIDTH_UNIT = "tiles"
SIMULATED = True

NEEDED = ("tile_memory_bytes", "exchange_bytes_per_s", "sync_s")
"""Figures that a platform gives: memory of a tile, bytes that all tiles exchange in a second, and
seconds of a barrier of all tiles."""

SHARE = 64
"""Multiplications that a tile has at least, so that they are worth a tile (assumed)."""


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...] | Refused:
    """Networks: acting, gradient steps, and copies of parameters."""
    structure = kind_of(kernel).structure
    if structure not in ("network", "gradient", "copy"):
        return Refused(f"runs networks alone, not {structure}")
    need = kernel.bytes_in + kernel.bytes_out + kernel.resident_bytes
    has = device.width * device.figures["tile_memory_bytes"]
    if need > has:
        return Refused(
            f"needs {need / 1e6:.2f} MB on its tiles, has {has / 1e6:.2f} MB; a smaller network or "
            "more tiles fit"
        )
    return (("tiles", device.width),)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """The host's own call: training with this device is emulated."""
    from pearl_devices import backend

    return backend("cpu").bind(kernel, "torch", buffers)


def ESTIMATE(kernel: Kernel, device: Device, variant: str, width: int) -> FiringCost:
    """Seconds of a firing."""
    tiles = max(1, min(width, int(kernel.flops / (2 * SHARE))))
    compute_s = kernel.flops / (device.peak_flops_per_s * tiles / device.width)
    exchange_s = (kernel.bytes_in + kernel.bytes_out) / device.figures["exchange_bytes_per_s"]
    seconds = compute_s + exchange_s + device.figures["sync_s"]
    return {"latency_s": seconds, "low_s": 0.5 * seconds, "high_s": 2.0 * seconds}
