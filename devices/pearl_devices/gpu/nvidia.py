"""NVIDIA's GPUs, driven by torch and CuPy, and other vendors' GPUs, driven by torch only.

Torch owns memory, streams and graphs. CuPy loads the cubins of `nvrtc` and launches them on torch's
current stream. Binding a kernel that needs CuPy imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import finalize

from pearl_devices.base import DeviceFailed, UnsupportedError
from pearl_devices.gpu.driver import Driver, Launch
from pearl_devices.gpu.nvrtc import compile_program
from pearl_devices.gpu.program import Program

if TYPE_CHECKING:
    import torch

KINDS = ("cuda", "xpu", "mps")
"""Kinds of torch devices, in the order in which PEARL looks for them; AMD's are cuda."""

MAPPED = 2
"""cudaHostRegisterMapped."""

UNASKED_BYTES = 32 * 1024
"""Dynamic shared memory of a block above which a kernel must request it. The request is necessary
if this and the source's static memory exceed 48 KiB together (CUDA programming guide)."""

MOST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver API."""


def torch_kind() -> str | None:
    """Return the kind of GPU that torch drives here; None if it drives none."""
    import torch

    found = [k for k in KINDS if (m := getattr(torch, k, None)) is not None and m.is_available()]
    return found[0] if found else None


def driver(number: int) -> Driver:
    """Return the driver of a GPU of this machine. number: its position among torch's GPUs in the
    order of the PCI bus, as in NVML; torch's own order begins with the fastest.

    Raises:
        UnsupportedError: torch drives no such GPU here; the text gives the reason.
    """
    import torch

    kind = torch_kind()
    if kind is None:
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        raise UnsupportedError(
            f"this torch ({torch.__version__}) "
            + (
                "finds no driver of a GPU here; install the vendor's driver (nvidia-smi must list "
                "the card)"
                if built
                else "is built for CPUs alone; install one for your GPU (pytorch.org)"
            )
            + ", or keep tasks off the GPU (limits.devices)"
        )
    module = torch.get_device_module(kind)
    count = module.device_count()
    if number >= count:
        raise UnsupportedError(
            f"torch sees {count} GPUs here, and the plan uses number {number} (from 0); look at "
            "CUDA_VISIBLE_DEVICES, or plan again"
        )

    def slot(index: int) -> tuple[int, ...]:
        told = module.get_device_properties(index) if count > 1 else None
        return tuple(getattr(told, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))

    return driver_of(torch.device(kind, sorted(range(count), key=slot)[number]))


@cache
def driver_of(device: torch.device) -> Driver:
    """Return the driver of a torch device."""
    return Gpu(device)


class Gpu:
    """A `Driver` of a real device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._modules: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        return self._device

    def prepare_launch(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        import torch

        cupy = _cupy(self._device)
        with cupy.cuda.Device(self._device.index):
            if program.digest not in self._modules:
                module = cupy.cuda.function.Module()
                module.load(compile_program(program, self._architecture()).code)
                self._modules[program.digest] = module
            function = self._modules[program.digest].get_function(kernel)
            if shared_bytes > UNASKED_BYTES:
                cupy.cuda.driver.funcSetAttribute(function.ptr, MOST_SHARED, shared_bytes)
        kept = tuple(arguments)  # the device gets addresses only, so the arguments must stay alive
        values = tuple(_value(a) for a in kept)
        sizes = tuple(grid), tuple(block)

        def launch(_: Any = kept) -> None:
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(self._device).cuda_stream)
            function(*sizes, values, shared_bytes, stream)

        return launch

    def map_array(self, array: Any) -> torch.Tensor:
        """Lock the array's pages, so that kernels read them at their address in the host's memory
        (CUDA programming guide, "Mapped Memory"; unified addressing).

        Raises:
            DeviceFailed: CUDA cannot map the memory.
        """
        import torch

        host = torch.from_numpy(array)
        if host.numel() and not host.is_pinned():
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            with torch.cuda.device(self._device):
                status = int(runtime.cudaHostRegister(host.data_ptr(), host.nbytes, MAPPED))
            if status:
                raise DeviceFailed(
                    f"{self._device}: {host.nbytes} bytes of the host's memory cannot be mapped "
                    f"(CUDA error {status}); allow more locked memory (ulimit -l), or choose "
                    "variants that keep their arrays on the device"
                )
            owner = array
            while isinstance(owner.base, type(array)):
                owner = owner.base
            finalize(owner, runtime.cudaHostUnregister, host.data_ptr()).atexit = False
        return host

    def _architecture(self) -> str:
        """The architecture as NVRTC names it; H100's with its specific features."""
        import torch

        major, minor = torch.cuda.get_device_capability(self._device)
        return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def _value(argument: Any) -> Any:
    """A kernel's parameter as CuPy passes it: pointers and int64 as 8-byte ints, doubles."""
    import numpy as np

    if hasattr(argument, "data_ptr"):
        return np.uint64(argument.data_ptr())
    return np.float64(argument) if isinstance(argument, float) else np.int64(argument)


def _cupy(device: torch.device) -> Any:
    """Import CuPy.

    Raises:
        UnsupportedError: it is missing or has another CUDA than torch, or the GPU is not NVIDIA's.
    """
    import torch

    if device.type != "cuda" or torch.version.cuda is None:
        raise UnsupportedError(
            f"{device}: variants in CUDA run on NVIDIA's GPUs alone; use eager (limits.variants)"
        )
    wanted = int(torch.version.cuda.partition(".")[0])
    try:
        cupy: Any = import_module("cupy")
    except ImportError as error:
        raise UnsupportedError(
            f"variants in CUDA need CuPy, which cannot be imported ({error}); install the extra "
            f"[gpu-cuda{wanted}], or use eager (limits.variants)"
        ) from error
    has = cupy.cuda.runtime.runtimeGetVersion() // 1000
    if has != wanted:
        raise UnsupportedError(
            f"CuPy is built for CUDA {has} and torch for CUDA {wanted}, and one process cannot use "
            f"both; install the extra [gpu-cuda{wanted}] in place of cupy-cuda{has}x"
        )
    return cupy
