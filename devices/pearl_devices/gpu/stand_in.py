"""The CPU in a GPU's place, for tests: torch's device API with its device cpu, CUDA through fibres.

It is bound, driven and refused by the code of `pearl_devices.gpu`, over memory of its own; only
`driver.HostTwin` is another. It is no way to be fast, and its times say nothing of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.device_kind import DeviceMemory
from pearl_devices.gpu.binding import bound, offered
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.memory import TorchMemory
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "sm"
SIMULATED = False
ESTIMATE = "pearl_estimators.gpu.variants:gpu_roofline"
VERIFY = "pearl_devices.gpu.verify:verify"

offers = offered


def present(device: Device) -> bool:
    """Always: it needs a CPU, and for CUDA sources g++."""
    return True


def memory(number: int) -> DeviceMemory:
    """Memory apart from the arrays of the run."""
    return TorchMemory(HostDriver())


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepares a kernel over twins of `memory`; see `binding.bound`."""
    return bound(kernel, variant, buffers, HostDriver)


def first_use(device: Device, number: int, uses: Iterable[tuple[Kernel, str]]) -> list[str]:
    """What a GPU computes otherwise than the CPU; see `verify.first_use`."""
    from pearl_devices.gpu import verify

    return verify.first_use(device, number, uses)
