"""GPUs that torch drives, and GPUs that only torch knows."""

from __future__ import annotations

import platform as python_platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pearl_devices.base import (
    GPU_IDLE_SHARE,
    LAUNCH_S,
    PCIE_LATENCY_S,
    UNTIMED,
    Device,
    Link,
    UnsupportedError,
)
from pearl_devices.gpu.nvidia import driver, torch_kind

UNIT_FLOPS_PER_S, GPU_BYTES_PER_S, GPU_ACTIVE_W = 1e11, 2e11, 200.0  # assumed, for a GPU that
# only torch knows: a tenth of a TFLOP/s per compute unit, consumer class
PCIE_BYTES_PER_S = 16e9  # assumed: PCIe 4.0 of 8 lanes
LINK_SOURCES = dict.fromkeys(("latency_s", "bytes_per_s", "per_message_s"), "assumed")


def is_driven(number: int) -> bool:
    """Return whether torch drives the GPU of this number."""
    try:
        driver(number)
    except (UnsupportedError, ImportError):
        return False
    return True


def torch_gpus(host: str, kind_name: str) -> Iterator[tuple[Device, Link]]:
    """Yield GPUs that only torch knows: AMD's, Intel's and Apple's. None is no error.

    host: the device to which they are linked. kind_name: their kind, and name. torch is imported
    only if it is built for one. It gives names, memory and units; all other figures are assumed.
    """
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return
    apple = sys.platform == "darwin" and python_platform.machine() == "arm64"
    if not (build.startswith(("rocm", "xpu")) or apple):
        return
    import torch

    kind = torch_kind()
    if kind is None:
        return
    count = torch.get_device_module(kind).device_count()
    for i in range(count):
        told: Any = None if apple else torch.get_device_module(kind).get_device_properties(i)
        name = kind_name if count == 1 else f"{kind_name}{i}"
        count_of = getattr(told, "multi_processor_count", getattr(told, "gpu_subslice_count", 16))
        units = max(1, int(count_of))
        sources = dict.fromkeys(
            ("peak_flops_per_s", "memory_bytes_per_s", "overhead_s", "idle_power_w"),
            "assumed; torch gives no value",
        )
        yield (
            Device(
                name,
                kind_name,
                width=units,
                width_unit="sm",
                memory_bytes=float(getattr(told, "total_memory", 8 * 2**30)),
                peak_flops_per_s=UNIT_FLOPS_PER_S * units,
                memory_bytes_per_s=GPU_BYTES_PER_S,
                overhead_s=LAUNCH_S,
                idle_power_w=GPU_IDLE_SHARE * GPU_ACTIVE_W,
                active_power_w=GPU_ACTIVE_W,
                real=True,
                model=str(getattr(told, "name", "Apple GPU")),
                sources={**sources, "active_power_w": sources["idle_power_w"], "width": "torch"},
            ),
            Link(
                host,
                name,
                PCIE_LATENCY_S,
                PCIE_BYTES_PER_S,
                LAUNCH_S,
                sources=LINK_SOURCES,
                band=UNTIMED,
            ),
        )
