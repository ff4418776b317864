"""A device that computes nothing: it charges the fixed time its estimate says, for tests."""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.kernel import Kernel


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Every kernel, one way."""
    return (("null", 1),)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """A call that does nothing."""
    return lambda: None
