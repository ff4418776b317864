"""`Interface`: the transformations between an environment and the network of a policy.

In order: pixels are scaled to 0 … 1, observations are normalised by mean and variance, user-defined
kernels change them, the network chooses, user-defined kernels change its actions. The statistics
and the arrays of these kernels stay as training left them. Evaluation through gymnasium and
`pearl.Policy` use this object. The native evaluation has no user-defined kernels, and computes the
same normalisation in its loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices import user_imports
from pearl_devices.base import KernelFailed
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.interface import (
    OBSERVED,
    STATISTICS,
    TAKEN,
    changes,
    resize,
    trained_arrays,
)
from pearl_devices.primitives.envs import spaces

Array = npt.NDArray[Any]


class Interface:
    """Bound to the arrays of one policy, which it reads at each call.

    acting: the acting kernel, with its `interface`.
    states: arrays of `kernels.interface.states`, and STATISTICS if observations are normalised, by
        name.
    pixels: (first, end) of observation components that are pixels of images.
    clip, epsilon: of the normalisation, as in `normalise.options`.
    """

    def __init__(
        self,
        acting: Kernel,
        states: Mapping[str, Array],
        *,
        pixels: spaces.Ranges = (),
        clip: float = 0.0,
        epsilon: float = 0.0,
    ) -> None:
        self.statistics = states.get(STATISTICS)
        self.clip, self.epsilon = clip, epsilon
        self._scale = spaces.scale(acting.dim("obs"), pixels) if pixels else None
        self._kernels = [
            (what, Passing(kernel, {name: states[name] for name in trained_arrays(kernel)}))
            for kernel in acting.interface
            for what in changes(kernel)
        ]

    def observe(
        self, rows: npt.NDArray[np.float32] | npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float32]:
        """Return observations (R, O) of the environment as the network reads them. They are float64
        if they are normalised, as in training.

        Raises:
            KernelFailed: a user-defined function failed.
        """
        if self._scale is not None:
            rows = rows * self._scale
        if self.statistics is not None:
            mean, variance = self.statistics
            scaled = (rows - mean) / np.sqrt(variance + self.epsilon)
            if self.clip > 0:
                scaled = scaled.clip(-self.clip, self.clip)
            rows = scaled.astype(np.float32)
        return self.apply_kernels(OBSERVED, rows)

    def take(self, actions: Array) -> Array:
        """Return actions (R) or (R, A) of the network as the environment takes them.

        Raises:
            KernelFailed: a user-defined function failed.
        """
        return self.apply_kernels(TAKEN, actions)

    def apply_kernels(self, what: str, rows: Array) -> Array:
        """Return rows after the user-defined kernels that change them. what: OBSERVED or TAKEN."""
        for changed, kernel in self._kernels:
            if changed == what:
                rows = kernel(what, rows)
        return rows


class Passing:
    """The `in_evaluation` function of a user-defined kernel.

    states: arrays that it can read but not write.
    """

    def __init__(self, kernel: Kernel, states: Mapping[str, Array]) -> None:
        self.kernel, self.program = kernel, str(kind_of(kernel).in_evaluation)
        self._function = user_imports.import_function(self.program)
        self._states = {name: array.view() for name, array in states.items()}
        for array in self._states.values():
            array.flags.writeable = False

    def __call__(self, what: str, rows: Array) -> Array:
        """Return a copy of `rows` after the function changed it. The function gets the copy as the
        array `what`.

        Raises:
            KernelFailed: the function failed.
        """
        arrays = {**self._states, what: np.array(rows, order="C")}
        if self.kernel.dim("envs") != len(rows):
            self.kernel = resize(self.kernel, len(rows))
        try:
            self._function(self.kernel, arrays)
        except Exception as error:  # user-defined functions may raise anything
            text = f"{type(error).__name__}: {user_imports.error_text(error)}"
            where = f"kernel kind {self.kernel.kind}: {self.program}"
            raise KernelFailed(f"{where} failed in evaluation: {text}") from error
        return arrays[what]
