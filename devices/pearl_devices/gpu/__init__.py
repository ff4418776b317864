"""GPUs: NVIDIA's through CUDA, other vendors' through torch only.

Variants: `eager` (the torch programs of the CPU, operator by operator), `graph` (the same, all
gradient steps of a firing recorded and replayed as one launch), `cuda` (hand-written, a firing in
one or a few launches). Torch variants also run on other vendors' GPUs that torch drives. The
records of the kinds and the table of `gpu.kernels` list the variants.
"""

from __future__ import annotations

from collections.abc import Iterable

from pearl_devices.base import Buffers, Call, Device, Link
from pearl_devices.device_kind import DeviceMemory
from pearl_devices.kernel import Kernel

WIDTH_UNIT = "sm"  # a streaming multiprocessor
SIMULATED = False
DRAWS_BY_WORK = True
MOVED_BYTES = "pearl_estimators.gpu.queue:moved_bytes"
LAUNCHED_BY_HOST = True  # the speed of the host's core determines how fast operators start
ESTIMATE = "pearl_estimators.gpu.calibration:calibrated_or_roofline"
COUNTER = "pearl_estimators.gpu.energy:nvml"
TIMER = "pearl_estimators.gpu.timing:time_gpu_here"
VERIFY = "pearl_devices.gpu.verify:verify"


def find_here(host_bytes: float) -> tuple[list[tuple[Device, Link]], list[str]]:
    """Return the GPUs of this machine, each with its link to the CPU, and notes on those left out.

    host_bytes: of the memory of the CPU.
    """
    from pearl_devices.gpu.nvml import find_gpus
    from pearl_devices.gpu.torch_gpus import torch_gpus

    found, notes = find_gpus(host_bytes)
    return found or list(torch_gpus("cpu", "gpu")), notes


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the variants of a kernel on a GPU; `Refused` if there is none."""
    from pearl_devices.gpu.binding import list_ways

    return list_ways(kernel, device)


def on_host(kernel: Kernel, variant: str) -> tuple[str, ...]:
    """Return the arrays that a variant keeps in the host's memory."""
    from pearl_devices.gpu import kernels

    return kernels.on_host(kernel, variant)


def memory(number: int) -> DeviceMemory:
    """Return the memory of a GPU of this machine."""
    from pearl_devices.gpu.memory import TorchMemory
    from pearl_devices.gpu.nvidia import driver

    return TorchMemory(driver(number))


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepare a kernel over twins of `memory`; see `binding.bind_kernel`."""
    from pearl_devices.gpu.binding import bind_kernel, device_of
    from pearl_devices.gpu.nvidia import driver_of

    return bind_kernel(
        kernel, variant, buffers, lambda: driver_of(device_of(kernel, variant, buffers))
    )


def first_use(device: Device, number: int, uses: Iterable[tuple[Kernel, str]]) -> list[str]:
    """Return a line for each difference between GPU and CPU; see `verify.first_use`."""
    from pearl_devices.gpu import verify

    return verify.first_use(device, number, uses)
