"""What a GPU lane asks of its device. `HostDriver` answers on the CPU, as a stand-in for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pearl_devices.gpu import cuda_emulator
from pearl_devices.gpu.program import Program

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, Any]
"""Named torch tensors on the device, by names of `kernels.arrays`: contiguous, shapes and dtypes as
there (uint64 arrays as torch.uint64)."""

Launch = Callable[[], None]
"""A prepared launch: starts it on the lane's stream, without waiting for its end."""


class Driver(Protocol):
    """One device. device: as torch names it."""

    @property
    def device(self) -> torch.device: ...

    def bound(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        """Prepares a launch of a CUDA kernel.

        arguments: tensors (pointers in the source), int (int64 there) and float (double there).
        shared_bytes: dynamic shared memory of a block.
        """

    def mapped(self, array: Any) -> torch.Tensor:
        """A numpy array's memory, which stays in the host's, as a tensor that kernels on the device
        read and write in place."""


class HostDriver:
    """The CPU in a GPU's place: torch's device API with its device cpu, CUDA source through fibres.

    order: of a block's threads, see `cuda_emulator.launch`.
    """

    def __init__(self, order: int = 0) -> None:
        self.order = order

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def bound(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        cuda_emulator.loaded(program)

        def launch() -> None:
            cuda_emulator.launch(program, kernel, grid, block, arguments, shared_bytes, self.order)

        return launch

    def mapped(self, array: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(array)
