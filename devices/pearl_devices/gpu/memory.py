"""A GPU's memory: torch tensors as twins of host arrays, and copies between the two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from pearl_devices.base import Call, DeviceFailed
from pearl_devices.device_kind import Pair
from pearl_devices.gpu.binding import on_host
from pearl_devices.gpu.driver import Driver
from pearl_devices.gpu.streams import streams_of
from pearl_devices.kernel import Kernel

LOST = ("AcceleratorError", "CUDADriverError", "CUDARuntimeError")
"""Errors of torch and CuPy after which a device is unusable."""


class TorchMemory:
    """A `DeviceMemory`. driver: of its device."""

    def __init__(self, driver: Driver) -> None:
        self.device = driver.device
        self._streams = streams_of(self.device)
        self._lanes: dict[str, tuple[Any, Any]] = {}
        self._nbytes = 0

    def holds(self, kernel: Kernel, variant: str, name: str) -> bool:
        return not on_host(kernel, variant, name)

    def twin(self, array: Any) -> Tensor:
        host = torch.from_numpy(array)
        short = host.dtype == torch.float64 and self.device.type == "mps"  # MPS has no float64
        with self._wrapping_errors(f"an array of {array.nbytes} bytes"):
            made = torch.empty(
                host.shape, dtype=torch.float32 if short else host.dtype, device=self.device
            )
            made.copy_(host)
        self._nbytes += made.nbytes
        return made

    def part(self, twin: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        return twin.view(-1)[first : first + math.prod(shape)].view(shape)

    def firing(
        self,
        call: Call,
        kernel: Kernel,
        loads: tuple[Pair, ...],
        stores: tuple[Pair, ...],
        lane: str,
    ) -> Call:
        """Make a firing. Copies use a separate stream, so that the copies of one lane overlap the
        kernels of another."""
        queue = self._streams
        if lane not in self._lanes:
            self._lanes[lane] = queue.make_stream(), queue.make_stream()
        computing, copying = self._lanes[lane]
        lanes, told = self._lanes, f"kernel {kernel.kind}"
        inwards = [(queue.staging(twin), torch.from_numpy(a), twin) for a, twin in loads]
        outwards = [(queue.staging(twin), torch.from_numpy(a), twin) for a, twin in stores]
        loaded, computed, stored = queue.make_event(), queue.make_event(), queue.make_event()

        copied_ns = [0]

        def fire() -> None:
            with self._wrapping_errors(told):
                if inwards:
                    begin_ns = perf_counter_ns()
                    for staging, host, twin in inwards:
                        staging.copy_(host)
                        queue.copy(twin, staging, copying)
                    loaded.record(copying)
                    computing.wait_event(loaded)
                    copied_ns[0] += perf_counter_ns() - begin_ns
                with queue.on(computing):
                    call()
                if not (inwards or outwards or len(lanes) > 1):
                    return
                computed.record(computing)
                if not outwards:
                    computed.synchronize()
                    return
                copying.wait_event(computed)
                for staging, _, twin in outwards:
                    queue.copy(staging, twin, copying)
                stored.record(copying)
                stored.synchronize()
                begin_ns = perf_counter_ns()
                for staging, host, _ in outwards:
                    host.copy_(staging)
                copied_ns[0] += perf_counter_ns() - begin_ns

        def wait() -> None:
            with self._wrapping_errors(told):
                computed.record(computing)
                computed.synchronize()

        fire.wait = wait  # type: ignore[attr-defined]
        fire.copied_ns = copied_ns  # type: ignore[attr-defined]
        return fire

    def load(self, pairs: tuple[Pair, ...]) -> None:
        with self._wrapping_errors("arrays of the host"):
            for array, twin in pairs:
                twin.copy_(torch.from_numpy(array))
            self._streams.finish()

    def store(self, pairs: tuple[Pair, ...]) -> None:
        with self._wrapping_errors("arrays of the device"):
            self._streams.finish()
            for array, twin in pairs:
                torch.from_numpy(array).copy_(twin)

    @contextmanager
    def _wrapping_errors(self, about: str) -> Iterator[None]:
        """Within this context, errors of the device become DeviceFailed. about: its current
        work."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise DeviceFailed(
                f"{self.device}: {about}: its memory is full, with {self._nbytes} bytes of this "
                "run's arrays in it; make the replay, the batch, the networks or the number of "
                "environments smaller, end other programs on it, or keep tasks off it "
                "(limits.devices, limits.pin)"
            ) from error
        except Exception as error:
            if type(error).__name__ not in LOST:
                raise
            why = " ".join(str(error).split())
            raise DeviceFailed(
                f"{self.device}: {about}: the device is lost ({why:.200}); the last checkpoint is "
                "untouched: look at the driver's log (dmesg, nvidia-smi -q), start the process "
                "again and go on with --resume, or keep tasks off the device (limits.devices)"
            ) from error
