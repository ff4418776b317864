"""Observations that are uint8, as a replay or a rollout stores them: `pack` and `unpack`.

An observation reaches the store as float32: the environment's numbers, divided by `units` (255 for
images, else 1). All bits come back, because the same product made them.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.kernel import Kernel
from pearl_devices.primitives.native import fast

MOST, CLOSE = np.float32(255.5), np.float32(1e-3)
"""The end of the range before it is rounded down, and the largest error of a whole number."""

NO_BYTES = (
    "the environment's observation space is of uint8, and it observes numbers that are not "
    "whole or not from 0 to 255; give its space the type it observes"
)


@fast
def pack(obs, units, out):
    """out (uint8) ← the numbers of which obs (rows, O) are 1/units.

    Raises:
        ValueError: A number is no such one: the space says uint8, and the environment gives others.
    """
    wrong = 0
    for n in range(obs.shape[0]):
        for c in range(obs.shape[1]):
            number = obs[n, c] * units
            whole = np.int32(min(max(number + np.float32(0.5), np.float32(0.0)), MOST))
            out[n, c] = np.uint8(whole)
            wrong += not abs(np.float32(whole) - number) <= CLOSE
    if wrong:
        raise ValueError(NO_BYTES)


@fast
def unpack(stored, unit, out):
    """out (rows, O) ← the observations of which `stored` (uint8, or float32 with unit 1) has the
    numbers."""
    for n in range(stored.shape[0]):
        for c in range(stored.shape[1]):
            out[n, c] = np.float32(stored[n, c]) * unit


def unit_of(kernel: Kernel) -> np.float32:
    """Return the unit in which a replay or a rollout stores observations; 1 for float32."""
    units = kernel.dims.get("units")
    return np.float32(1 / units if isinstance(units, int) and units else 1)
