"""A device that computes nothing: it charges the fixed time its estimate says, for tests."""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.kernel import Kernel


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Every kernel, one way."""
    return (("null", 1),)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """A call that does nothing. Any variant but `null` is an UnsupportedError."""
    if variant != "null":
        raise UnsupportedError(
            f"kernel {kernel.kind} has no variant {variant!r} on a null device; it has null"
        )
    return lambda: None
