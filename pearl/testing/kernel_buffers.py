"""Arrays with random contents that kernels can run on, for contracts and tests."""

from __future__ import annotations

from pearl_devices import Buffers
from pearl_devices.kernels.examples import fill_arrays as fill_arrays


def copied(buffers: Buffers) -> Buffers:
    """Return a copy of every array."""
    return {name: array.copy() for name, array in buffers.items()}


def equal(a: Buffers, b: Buffers) -> list[str]:
    """Return the names of the arrays that differ in any bit."""
    return [name for name in a if a[name].tobytes() != b[name].tobytes()]
