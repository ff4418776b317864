"""NVIDIA GPUs: planned for and emulated; no kernel is bound to one by this version."""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of

WIDTH_UNIT = "sm"  # a streaming multiprocessor
SIMULATED = False
ESTIMATE = "pearl_estimators.gpu.calibration:calibrated_or_roofline"
COUNTER = "pearl_estimators.energy:nvml"


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Networks and rollouts in eager torch, on all streaming multiprocessors.

    Gradient steps need a program, the torch loss. Replay and environments are not offered.
    """
    structure = kind_of(kernel).structure
    if structure in ("network", "copy", "store", "advantages") or (
        structure == "gradient" and kernel.program
    ):
        return (("torch", device.width),)
    return ()


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Always an UnsupportedError."""
    raise UnsupportedError(
        f"kernel {kernel.kind}, variant {variant!r}: this version plans for GPUs and emulates "
        "them, it does not run kernels on one; plan for the host alone to train for real"
    )
