"""NVIDIA GPUs: planned for and emulated; no kernel is bound to one by this version."""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "sm"  # a streaming multiprocessor
SIMULATED = False
ESTIMATE = "pearl_estimators.gpu.calibration:calibrated_or_roofline"
COUNTER = "pearl_estimators.energy:nvml"


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Networks in eager torch, on all streaming multiprocessors; replay and environments stay off.

    An update needs a program, the torch loss. Rollouts are stored and judged there too.
    """
    family = kernel.kind.partition(".")[0]
    networks = ("inference", "param_sync", "gae", "rollout_insert")
    if family in networks or (family == "update" and kernel.program):
        return (("torch", device.width),)
    return ()


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Always an UnsupportedError."""
    raise UnsupportedError(
        f"kernel {kernel.kind}, variant {variant!r}: this version plans for GPUs and emulates "
        "them, it does not run kernels on one; plan for the host alone to train for real"
    )
