"""The interface of a GPU lane to its device. Tests use `HostDriver`, which runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pearl_devices.gpu import cuda_emulator
from pearl_devices.gpu.program import Program

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, Any]
"""Named contiguous torch tensors on the device; names, shapes and dtypes are those of
`kernels.arrays` (uint64 arrays as torch.uint64)."""

Launch = Callable[[], None]
"""A prepared launch: a call starts it on the lane's stream and does not wait for its end."""


class Driver(Protocol):
    """One device. device: its torch device."""

    @property
    def device(self) -> torch.device: ...

    def prepare_launch(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        """Prepare a launch of a CUDA kernel.

        arguments: tensors (pointers in the source), int (there int64) and float (there double).
        shared_bytes: dynamic shared memory of a block.
        """

    def map_array(self, array: Any) -> torch.Tensor:
        """Return a numpy array's host memory as a tensor that device kernels read and write in
        place."""


class HostDriver:
    """The CPU instead of a GPU: torch's device API with its device cpu, CUDA sources through
    fibres.

    order: of a block's threads; see `cuda_emulator.launch`.
    """

    def __init__(self, order: int = 0) -> None:
        self.order = order

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def prepare_launch(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        cuda_emulator.load_library(program)

        def launch() -> None:
            cuda_emulator.launch(program, kernel, grid, block, arguments, shared_bytes, self.order)

        return launch

    def map_array(self, array: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(array)
