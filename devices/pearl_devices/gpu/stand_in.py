"""The CPU instead of a GPU, for tests: torch's device API with its device cpu, CUDA through fibres.

The code of `pearl_devices.gpu` binds, drives and refuses it, over separate memory; only the driver
differs (`driver.HostDriver`). Its times are unrelated to those of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.device_kind import DeviceMemory
from pearl_devices.gpu import kernels
from pearl_devices.gpu.binding import bind_kernel, list_ways
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.memory import TorchMemory
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "sm"
SIMULATED = False
ESTIMATE = "pearl_estimators.gpu.variants:gpu_roofline"
VERIFY = "pearl_devices.gpu.verify:verify"

offers = list_ways
on_host = kernels.on_host


def present(device: Device) -> bool:
    """Return True: it needs a CPU, and for CUDA sources g++."""
    return True


def memory(number: int) -> DeviceMemory:
    """Return memory separate from the arrays of the run."""
    return TorchMemory(HostDriver())


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepare a kernel over twins of `memory`; see `binding.bind_kernel`."""
    return bind_kernel(kernel, variant, buffers, HostDriver)


def first_use(device: Device, number: int, uses: Iterable[tuple[Kernel, str]]) -> list[str]:
    """Return a line for each difference between GPU and CPU; see `verify.first_use`."""
    from pearl_devices.gpu import verify

    return verify.first_use(device, number, uses)
