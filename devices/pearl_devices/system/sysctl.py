"""What macOS tells of the processor and the memory (sysctl(3))."""

from __future__ import annotations

import ctypes
import os
import sys

from pearl_devices.system.chip import Chip
from pearl_devices.system.interface import psutil

CACHES = {"l1d_bytes": "l1dcachesize", "l2_bytes": "l2cachesize"}
FAST = "hw.perflevel0"
"""The fastest cores of a chip (Apple, "Determining system capabilities")."""


def text(name: str) -> bytes | None:
    """Return a figure of the kernel, such as `hw.memsize`; None if there is none."""
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    size = ctypes.c_size_t(0)
    if ask is None or ask(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    found = ctypes.create_string_buffer(size.value)
    if ask(name.encode(), found, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return None
    return found.raw[: size.value]


def number(*names: str) -> int | None:
    """Return the first of these figures that there is and is not 0."""
    for name in names:
        if (found := text(name)) and (value := int.from_bytes(found, sys.byteorder)):
            return value
    return None


def fast_cores() -> int | None:
    """Return the number of performance cores; None if the system does not tell."""
    return number(f"{FAST}.physicalcpu", "hw.physicalcpu")


def read_chip() -> Chip:
    """Return the processor, by its performance cores, and the memory."""
    cores, memory = fast_cores(), number("hw.memsize")
    sizes = {each: number(f"{FAST}.{name}", f"hw.{name}") for each, name in CACHES.items()}
    clock = number("hw.cpufrequency_max", "hw.cpufrequency")  # Intel; Apple's chips tell none
    return Chip(
        model=(text("machdep.cpu.brand_string") or b"").rstrip(b"\0").decode(errors="replace"),
        cores=cores or os.cpu_count() or 1,
        cores_source=f"sysctl, {FAST}.physicalcpu" if cores else "os.cpu_count",
        clock_hz=None if clock is None else float(clock),
        clock_source="assumed" if clock is None else "sysctl, hw.cpufrequency",
        clock_is_base=clock is not None,
        cache_bytes={each: float(size) for each, size in sizes.items() if size},
        cache_source=f"sysctl, {FAST}",
        memory_bytes=float(memory or psutil().virtual_memory().total),
        memory_source="sysctl, hw.memsize" if memory else "psutil, virtual memory",
    )
