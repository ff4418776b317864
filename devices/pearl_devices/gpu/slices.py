"""Slices of an NVIDIA GPU: streams with dedicated SMs, by green contexts.

NVIDIA, "CUDA Driver API", green contexts (CUDA 12.4; their streams 12.5). Memory is shared: every
slice reads and writes allocations of the device's primary context, which is torch's. To give a
whole process a part of the SMs, use MPS with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in its environment.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pearl_devices.base import UnsupportedError

if TYPE_CHECKING:
    import torch

LIBRARY = "libcuda.so.1"
SM_RESOURCE, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1
"""CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM, CU_STREAM_NON_BLOCKING of cuda.h."""
NEEDED_VERSION = 12050
REMEDY = (
    "update the driver (CUDA 12.5 or later), or share the GPU between processes by MPS "
    "(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)"
)


class DevResource(ctypes.Structure):
    """CUdevResource of cuda.h: 144 bytes in CUDA 12 and 13. Only the first number of the union is
    used here."""

    _fields_ = (
        ("type", ctypes.c_uint),
        ("padding", ctypes.c_ubyte * 92),
        ("sms", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 36),
        ("next", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Slice:
    """sms: its SMs, at least as many as requested. stream: a torch stream; on the stand-in a
    number."""

    sms: int
    stream: Any


class Slicer(Protocol):
    """Splits one device."""

    def cut(self, counts: Sequence[int]) -> list[Slice]:
        """Return a slice for each of `counts` SMs; no two share an SM. Counts are rounded up to the
        device's granularity (8 SMs on an H100).

        Raises:
            UnsupportedError: there are too few SMs, or the driver cannot slice; the text says
                which.
        """

    def close(self) -> None:
        """Release all slices."""


class HostSlices:
    """A fake for tests: `width` SMs in groups of `grain`; its streams are numbers."""

    def __init__(self, width: int, grain: int = 8) -> None:
        self.width, self.grain = width, grain
        self._taken = 0

    def cut(self, counts: Sequence[int]) -> list[Slice]:
        _check(counts, self.width)
        found: list[Slice] = []
        for count in counts:
            sms = -(-count // self.grain) * self.grain
            if self._taken + sms > self.width:
                raise _too_many(count, self.width - self._taken)
            self._taken += sms
            found.append(Slice(sms, len(found)))
        return found

    def close(self) -> None:
        self._taken = 0


class GreenContexts:
    """Slices of a GPU that torch drives. library: the CUDA driver; tests give another."""

    def __init__(self, device: torch.device, library: str = LIBRARY) -> None:
        self._device = device
        self._contexts: list[ctypes.c_void_p] = []
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise UnsupportedError(
                f"slices of {device}: no CUDA driver is here ({error}); run without slices"
            ) from error
        version = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        if version.value < NEEDED_VERSION:
            major, minor = version.value // 1000, version.value % 1000 // 10
            raise UnsupportedError(
                f"slices of {device}: its driver is of CUDA {major}.{minor}; {REMEDY}"
            )

    def cut(self, counts: Sequence[int]) -> list[Slice]:
        handle, whole = ctypes.c_int(), DevResource()
        self._call("cuDeviceGet", ctypes.byref(handle), self._device.index or 0)
        self._call("cuDeviceGetDevResource", handle, ctypes.byref(whole), SM_RESOURCE)
        _check(counts, whole.sms)
        found = []
        for count in counts:
            part, rest, groups = DevResource(), DevResource(), ctypes.c_uint(1)
            if count > whole.sms:
                raise _too_many(count, whole.sms)
            self._call(
                "cuDevSmResourceSplitByCount", ctypes.byref(part), ctypes.byref(groups),
                ctypes.byref(whole), ctypes.byref(rest), 0, count,
            )  # fmt: skip
            if not groups.value:
                raise _too_many(count, whole.sms)
            found.append(Slice(part.sms, self._stream(part, handle)))
            whole = rest
        return found

    def _stream(self, part: DevResource, handle: ctypes.c_int) -> Any:
        description, context = ctypes.c_void_p(), ctypes.c_void_p()
        stream = ctypes.c_void_p()
        self._call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(part), 1)
        self._call("cuGreenCtxCreate", ctypes.byref(context), description, handle, DEFAULT_STREAM)
        self._contexts.append(context)
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, NON_BLOCKING, 0)
        return self.as_torch(int(stream.value or 0))

    def as_torch(self, stream: int) -> Any:
        """Return a stream of the driver as a torch stream."""
        import torch

        return torch.cuda.ExternalStream(stream, self._device)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        while self._contexts:
            self._call("cuGreenCtxDestroy", self._contexts.pop())

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._cuda, name, None)
        if function is None:
            raise UnsupportedError(f"slices of {self._device}: its driver has no {name}; {REMEDY}")
        status = function(*arguments)
        if status:
            raise UnsupportedError(
                f"slices of {self._device}: {name} gives error {status} ({self._named(status)})"
            )

    def _named(self, status: int) -> str:
        text = ctypes.c_char_p()
        named = getattr(self._cuda, "cuGetErrorName", None)
        known = named is not None and not named(status, ctypes.byref(text))
        return text.value.decode() if known and text.value else "unknown"


def _check(counts: Sequence[int], width: int) -> None:
    for count in counts:
        if not 1 <= count <= width:
            raise UnsupportedError(f"a slice of {count} SMs; allowed are 1 to {width}")


def _too_many(count: int, left: int) -> UnsupportedError:
    return UnsupportedError(
        f"a slice of {count} SMs, rounded up to the device's granularity, does not fit into the "
        f"{left} free SMs; request fewer or smaller slices"
    )
