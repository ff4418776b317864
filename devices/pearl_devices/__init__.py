"""Devices, and how kernels run on them. Imports nothing of `pearl` or `pearl_estimators`."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pearl_devices.base import Backend, Buffers, Call, Device, Link, Platform, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.work import kernel

BACKENDS = {kind: f"pearl_devices.{kind}" for kind in ("cpu", "gpu", "fpga", "null")}
"""Device kind → the module that is its `Backend`. A new kind is one file and one line."""


def backend(kind: str) -> Backend:
    """The backend of a device kind, imported on use; an unknown kind is a KeyError naming all."""
    if kind not in BACKENDS:
        raise KeyError(f"no device kind {kind!r}; there are {sorted(BACKENDS)}")
    return cast(Backend, import_module(BACKENDS[kind]))


__all__ = [
    "BACKENDS",
    "Backend",
    "Buffers",
    "Call",
    "Device",
    "Kernel",
    "Link",
    "Platform",
    "UnsupportedError",
    "backend",
    "kernel",
]
