"""The operating system: everything that Linux, macOS and Windows do not do alike.

`HostSystem` is the interface; `linux`, `portable` (macOS and other Unix systems) and `windows` are
its parts. `PEARL_SYSTEM` selects one of them; by default it is the one whose calls this Python has.
The room imports the standard library alone (psutil on use), so that a program without other imports
can use it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from pearl_devices.system.interface import HostSystem, WakeEvent

__all__ = ["HostSystem", "WakeEvent", "explain_no_processes", "host_system", "part"]

VARIABLE = "PEARL_SYSTEM"
PARTS = {"linux": "Linux", "portable": "Portable", "windows": "Windows"}

LINUX = ("eventfd", "memfd_create", "pidfd_open", "sched_setaffinity")
"""Calls that a Python for Linux may lack, if it was compiled for an old one."""


def part(name: str) -> HostSystem:
    """Return the system of this name."""
    if name not in PARTS:
        raise ValueError(f"{VARIABLE}: unknown system {name!r}; allowed: {', '.join(PARTS)}")
    found = getattr(import_module(f"{__name__}.{name}"), PARTS[name])()
    assert isinstance(found, HostSystem)
    return found


def _offered() -> str:
    if not hasattr(os, "fork"):
        return "windows"
    complete = sys.platform == "linux" and all(hasattr(os, call) for call in LINUX)
    return "linux" if complete else "portable"


def explain_no_processes() -> str:
    """Return why this system has no lanes, environments or runs in processes, and the way out."""
    return f"{host_system.NAME} starts no processes that share memory with PEARL; WSL does"


host_system = part(os.environ.get(VARIABLE) or _offered())
"""The operating system of this process."""
