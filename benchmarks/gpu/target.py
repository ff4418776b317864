"""The device that is measured, and what a section of the benchmark finds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bars import AbsentError
from pearl_devices import Device, Kernel, UnsupportedError, discover, trust_kind
from pearl_devices.base import Pending
from pearl_devices.buffers import allocate
from pearl_devices.gpu import nvidia
from pearl_devices.gpu.binding import bind_kernel
from pearl_devices.gpu.driver import Driver, HostDriver
from pearl_devices.gpu.memory import TorchMemory
from pearl_estimators.gpu.timing import synchronised_s
from pearl_estimators.host.benchmark_kernels import fill

Arrays = dict[str, Any]

TIMED_S = 0.2
"""Seconds that timing one call takes."""

STAND_IN = {
    "source": "none: a stand-in", "peak": "1 TFLOP/s", "memory_bandwidth": "100 GB/s",
    "overhead": "1 us", "idle_power": "1 W", "active_power": "10 W",
}  # fmt: skip
LINK = {"between": ["cpu", "gpu"], "source": "none", "latency": "1 us", "bandwidth": "16 GB/s"}
PLATFORM: dict[str, Any] = {
    "devices": {
        "cpu": {"kind": "cpu", "width": 2, "max_lanes": 2, **STAND_IN},
        "gpu": {"kind": "pearl_devices.gpu.stand_in", "width": 8, **STAND_IN},
    },
    "links": [LINK],
}


@dataclass(frozen=True)
class Case:
    """One line of a section.

    counts: whole numbers that say what ran. figures: times, rates, ratios and joules, by name with
    its unit; never of the stand-in. asked: of a figure, and by which `passed` is judged too.
    """

    what: str
    passed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    asked: str = ""
    note: str = ""


@dataclass(frozen=True)
class Target:
    """A GPU, or the stand-in for one. platform: as a spec names it, `gpu` being this device."""

    device: Device
    driver: Driver
    stand_in: bool
    platform: Any
    number: int = 0

    @property
    def devices(self) -> tuple[Device, ...]:
        """All of the machine, which draw power while a loop runs."""
        return (self.device,) if self.stand_in else discover.host().devices

    def seconds(self, call: Callable[[], object]) -> float | None:
        """Of a call, from its start to the end of its work; on the stand-in it only runs."""
        if not self.stand_in:
            return synchronised_s(self.driver, call, TIMED_S)
        call()
        return None

    def figures(self, **found: float | None) -> dict[str, float]:
        """Those that were measured; nothing on the stand-in."""
        return {} if self.stand_in else {n: f for n, f in found.items() if f is not None}


def target(stand_in: bool) -> Target:
    """The GPU of this machine, the first of several, or the stand-in.

    Raises:
        AbsentError: there is none that can be driven.
    """
    if stand_in:
        trust_kind("pearl_devices.gpu.stand_in")
        device = Device("gpu", "pearl_devices.gpu.stand_in", width=8, width_unit="sm", real=True)
        return Target(device, HostDriver(), True, PLATFORM)
    found = [d for d in discover.host().devices if d.width_unit == "sm"]
    if not found:
        raise AbsentError("no GPU is here; --stand-in runs everything at small sizes on the CPU")
    try:
        return Target(found[0], nvidia.driver(0), False, "host")
    except UnsupportedError as error:
        raise AbsentError(str(error)) from error


def on_device(
    target: Target, of: Kernel, variant: str
) -> tuple[Arrays, Arrays, TorchMemory, Callable[[], Pending | None]]:
    """Filled arrays of a kernel, their twins on the device, its memory, and a call of a firing."""
    arrays = dict(allocate([of]))
    fill(arrays, of)
    memory = TorchMemory(target.driver)
    twins = {n: memory.twin(a) for n, a in arrays.items() if memory.holds(of, variant, n)}
    return (
        arrays,
        twins,
        memory,
        bind_kernel(of, variant, {**arrays, **twins}, lambda: target.driver),
    )
