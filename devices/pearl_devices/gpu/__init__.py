"""GPUs: NVIDIA's by CUDA, those of others by torch alone.

Variants: `eager` (the torch programs of the CPU, operator by operator), `cuda` (written by hand,
one firing a launch or a few), `fused` (the same with all gradient steps of a firing in one launch,
on one streaming multiprocessor). Those of torch also run where torch drives a GPU that is not
NVIDIA's. The kinds' records say which of them a kernel has.
"""

from __future__ import annotations

from collections.abc import Iterable

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.device_kind import DeviceMemory
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "sm"  # a streaming multiprocessor
SIMULATED = False
DRAWS_BY_WORK = True
LAUNCHED_BY_HOST = True  # operators start as fast as the host's core is
ESTIMATE = "pearl_estimators.gpu.calibration:calibrated_or_roofline"
COUNTER = "pearl_estimators.energy:nvml"
TIMER = "pearl_estimators.gpu.timing:timed_here"
VERIFY = "pearl_devices.gpu.verify:verify"


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """The variants of a kernel on a GPU; `Refused` for a kernel that it cannot run."""
    from pearl_devices.gpu.binding import offered

    return offered(kernel, device)


def memory(number: int) -> DeviceMemory:
    """The memory of a GPU of this machine."""
    from pearl_devices.gpu.memory import TorchMemory
    from pearl_devices.gpu.nvidia import driver

    return TorchMemory(driver(number))


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepares a kernel over twins of `memory`; see `binding.bound`."""
    from pearl_devices.gpu.binding import bound, device_of
    from pearl_devices.gpu.nvidia import driver_of

    return bound(kernel, variant, buffers, lambda: driver_of(device_of(kernel, variant, buffers)))


def first_use(device: Device, number: int, uses: Iterable[tuple[Kernel, str]]) -> list[str]:
    """What a GPU computes otherwise than the CPU; see `verify.first_use`."""
    from pearl_devices.gpu import verify

    return verify.first_use(device, number, uses)
