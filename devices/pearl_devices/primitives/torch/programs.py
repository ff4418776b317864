"""User-defined programs of kernels: the loss of an update, the choice of actions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pearl_devices.base import UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.math import rng
from pearl_devices.user_imports import import_function


def resolve(kernel: Kernel) -> Callable[..., Any]:
    """Return the callable that kernel.program names.

    Raises:
        UnsupportedError: There is no such callable.
    """
    try:
        return import_function(str(kernel.program))
    except ValueError as error:
        raise UnsupportedError(
            f"kernel {kernel.kind}: program {kernel.program!r} cannot be found ({error}); "
            "it must be module:callable"
        ) from error


def loss_of(kernel: Kernel) -> Callable[..., Any]:
    """Return the loss that kernel.program names; it takes the options in kernel.args.

    Raises:
        UnsupportedError: The loss cannot be found or does not take these options.
    """
    losses = resolve(kernel)
    try:
        signature(losses).bind(None, None, None, **kernel.args)
    except TypeError as error:
        raise UnsupportedError(
            f"kernel {kernel.kind}: {kernel.program} cannot be called with (nets, batch, hyper) "
            f"and the options {sorted(kernel.args)}: {error}"
        ) from error
    return losses


def normal(advantage: Any) -> Any:
    """Normalise to mean 0 and unbiased standard deviation 1 (plus 1e-8), as the native variants do.

    A single row stays unchanged.
    """
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class Noise:
    """Random numbers of one task's stream, in the order of the calls. The numbers of a firing
    depend on its index only.

    device: where the numbers lie; None: where the host draws them.
    """

    def __init__(self, counter: npt.NDArray[np.uint64], device: torch.device | None = None) -> None:
        self._counter, self._device = counter, device
        self._base, self._drawn = np.uint64(0), 0

    def begin(self) -> None:
        """Begin the next firing."""
        self._base = np.uint64(rng.stream_base(self._counter[0], self._counter[1]))
        self._drawn = 0
        self._counter[1] += np.uint64(1)

    def _fill(self, numbers: Callable[..., None], shape: tuple[int, ...]) -> Tensor:
        out = np.empty(shape, np.float32)
        numbers(self._base, self._drawn, out.reshape(-1))
        self._drawn += out.size + out.size % 2
        drawn = torch.from_numpy(out)
        return drawn if self._device is None else drawn.to(self._device)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal float32 numbers."""
        return self._fill(rng.normals, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform float32 numbers in [0, 1)."""
        return self._fill(rng.uniforms, shape)
