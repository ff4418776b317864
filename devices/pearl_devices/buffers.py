"""The arrays of kernels: `specs` names the arrays of a kernel, `allocate` makes them.

The whole state of a run lies in these arrays (`pearl_devices.kernels.arrays` names them). So a
checkpoint holds these arrays and nothing else, and each variant of a kernel (native, torch) is
another function on the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import Spec


def specs(kernel: Kernel) -> dict[str, Spec]:
    """Name → (shape, dtype) of every array that `kernel` touches.

    Raises:
        KeyError: the kernel's kind is unknown.
    """
    kind = kind_of(kernel)
    if kind.structure == "unknown":
        raise KeyError(kernel.kind)
    return kind.arrays(kernel)


def allocate(kernels: Iterable[Kernel], buffers: Buffers | None = None) -> Buffers:
    """Add the arrays of `kernels` to `buffers`, filled with zeros. Existing arrays stay.

    Raises:
        ValueError: two kernels disagree about an array; the text names the array and both shapes.
    """
    arrays: Buffers = {} if buffers is None else buffers
    for kernel in kernels:
        for name, (shape, dtype) in specs(kernel).items():
            old: npt.NDArray[np.generic] | None = arrays.get(name)
            if old is None:
                arrays[name] = np.zeros(shape, dtype)
            elif old.shape != shape or old.dtype != np.dtype(dtype):
                raise ValueError(
                    f"kernel {kernel.kind} wants {name} as {dtype}{list(shape)}, "
                    f"but it is {old.dtype}{list(old.shape)}"
                )
    return arrays
