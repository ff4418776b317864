"""Arrays with random contents that kernels can run on, for contracts and tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pearl_devices import Buffers, Kernel
from pearl_devices.buffers import allocate
from pearl_devices.primitives.math.rng import key


def filled(kernels: Iterable[Kernel], seed: int = 0) -> Buffers:
    """The arrays of `kernels`, with contents drawn from `seed` that every kernel can run on."""
    buffers = allocate(kernels)
    random = np.random.default_rng(seed)
    fixed = {
        "explore": (1.0, 0.1, 100.0, 16.0),
        "replay.beta": (0.4, 1.0, 50.0),
        "replay.priority": (0.6, 1e-2, 1.0),
        "hyper.adam": (0.9, 0.999, 1e-8),
        "hyper.tau": 0.01,
        "hyper.discount": 0.97,
        "hyper.smoothing": (0.2, 0.3),
        "hyper.target_entropy": -1.0,
        "act.low": -2.0,
        "act.high": 2.0,
    }
    for name, array in sorted(buffers.items()):
        if name in fixed:
            array[:] = fixed[name]
        elif name.startswith("rng."):
            array[:] = (key(seed, name), 0)
        elif name.startswith("hyper.lr"):
            array[:] = 1e-3
        elif name.endswith(".v"):
            array[:] = random.uniform(0, 1e-3, array.shape)
        elif name == "batch.weight":
            array[:] = random.uniform(0.2, 1.0, array.shape)
        elif name == "batch.discount":
            array[:] = 0.97 * (random.random(array.shape) < 0.8)
        elif name.startswith(("learner.", "policy.")) and array.dtype == np.float32:
            array[:] = random.normal(0, 0.2, array.shape)
        elif name.startswith(("batch.", "step.")) and array.dtype == np.float32:
            array[:] = random.normal(0, 1.0, array.shape)
        elif name == "batch.action":
            array[:] = random.integers(0, 2, array.shape)
    return buffers


def copied(buffers: Buffers) -> Buffers:
    """A copy of every array."""
    return {name: array.copy() for name, array in buffers.items()}


def equal(a: Buffers, b: Buffers) -> list[str]:
    """The names of the arrays that differ in any bit."""
    return [name for name in a if a[name].tobytes() != b[name].tobytes()]
