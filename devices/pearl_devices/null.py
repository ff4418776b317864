"""A null device for tests: it computes nothing, and its figures give the times."""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, FigureError, UnsupportedError
from pearl_devices.device_kind import FiringCost
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "cores"
SIMULATED = False


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return one way for every kernel."""
    return (("null", 1),)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Return a call that does nothing.

    Raises:
        UnsupportedError: the variant is not `null`.
    """
    if variant != "null":
        raise UnsupportedError(
            f"kernel {kernel.kind} has no variant {variant!r} on a null device; it has null"
        )
    return lambda: None


def estimate_from_figures(kernel: Kernel, device: Device, variant: str, width: int) -> FiringCost:
    """Return the figure `latency_s.KIND` for one kernel kind, else `latency_s`.

    Raises:
        FigureError: the device has neither figure.
    """
    for name in (f"latency_s.{kernel.kind}", "latency_s"):
        if name in device.figures:
            source = device.sources.get(name, "given by the platform")
            return {"latency_s": device.figures[name], "rung": "given", "source": source}
    raise FigureError(
        f"device {device.name!r} of kind null gives no time for kernel {kernel.kind}; add the "
        f"figure latency_s or latency_s.{kernel.kind}, in seconds, to its figures "
        f"{sorted(device.figures)}"
    )


ESTIMATE = estimate_from_figures
