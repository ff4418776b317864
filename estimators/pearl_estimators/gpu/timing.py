"""Timing a GPU: operators of torch, costs of starts, copies. Works with any driver of a GPU.

It also runs on the stand-in, where the figures mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pearl_devices import Device, Kernel, UnsupportedError
from pearl_devices.base import Call
from pearl_devices.buffers import allocate
from pearl_devices.gpu.binding import bind_kernel, handwritten_variants, torch_variants
from pearl_devices.gpu.driver import Driver
from pearl_devices.gpu.memory import TorchMemory
from pearl_devices.gpu.streams import streams_of
from pearl_estimators.gpu.calibration import (
    GpuCalibration,
    calibrate_gpu,
    driver_version,
    store_gpu,
)
from pearl_estimators.gpu.operators import Operation
from pearl_estimators.gpu.variants import Copies, Starts, launches
from pearl_estimators.host.benchmark_kernels import fill
from pearl_estimators.host.random_kernels import DRAWS, draw_kernels
from pearl_estimators.host.timer import time_call

MANY, FEW = 64, 8
"""Operators in a row that are timed as one."""
LARGEST = 2048
"""Largest side of a product; other operators have four times its square as elements."""
LONGEST = 1 << 24
"""Bytes of a copy."""
SMALL_FLOPS, SMALL_STEPS = 2e7, 2
"""Widths of kernels whose starts are timed: small, so that the host's time is measured."""


def time_gpu(
    driver: Driver, device: Device, seconds: float = 10.0, largest: int = LARGEST
) -> GpuCalibration:
    """Calibrate a GPU in about `seconds` seconds. largest: side of a product.

    Raises:
        UnsupportedError: the driver fails; the text names the step.
        CalibrationError: the timings do not fit.
    """
    operations = list(_operations(largest))
    each_s = seconds / (len(operations) + 10)
    rows = [(o, _operator_s(driver, o, each_s)) for o in operations]
    starts, copies = _starts(driver, each_s), _copies(driver, each_s)
    source = f"pearl calibrate, {time.strftime('%Y-%m-%d', time.gmtime())}"
    found = calibrate_gpu(device.model or device.name, device.width, rows, source)
    return replace(found, starts=starts, copies=copies, driver=driver_version())


def time_gpu_here(device: Device, number: int, seconds: float) -> tuple[GpuCalibration, Path]:
    """Time GPU `number` of this machine and store the calibration.

    Raises:
        UnsupportedError: nothing drives the GPU; the text gives the reason.
    """
    from pearl_devices.gpu.nvidia import driver

    found = time_gpu(driver(number), device, seconds)
    return found, store_gpu(found)


def synchronised_s(driver: Driver, call: Callable[[], object], seconds: float) -> float:
    """Return the seconds of a call from its start to the end of its work."""
    queue = streams_of(driver.device)

    def whole() -> None:
        call()
        queue.finish()

    return time_call(whole, seconds=seconds, computes=False, blocks=3).median_s


def call_on(driver: Driver, kernel: Kernel, variant: str) -> Call:
    """Return a kernel bound over plausible arrays in the memory of a device."""
    arrays = allocate([kernel])
    fill(arrays, kernel)
    memory = TorchMemory(driver)
    for name in arrays:
        if memory.holds(kernel, variant, name):
            arrays[name] = memory.twin(arrays[name])
    return bind_kernel(kernel, variant, arrays, lambda: driver)


def small(structure: str, variant: str) -> Iterator[Kernel]:
    """Yield small kernels of this structure that have this variant on a GPU."""
    for name, (_, kind, _) in DRAWS.items():
        if kind.structure == structure:
            _, kernel = next(
                draw_kernels([name], 3, most_flops=SMALL_FLOPS, most_steps=SMALL_STEPS)
            )
            if variant in torch_variants(kernel) or variant in handwritten_variants(kernel):
                yield kernel


def _operations(largest: int) -> Iterator[Operation]:
    sides = [largest // 64, largest // 16, largest // 4, largest]
    for i, m in enumerate(sides):
        for j, n in enumerate(sides):
            yield Operation("linear", 1, m, sides[(i + j) % 4], n)
    size = 4 * largest * largest
    for _ in range(9):
        yield Operation("elementwise", 1, size, 1, 1, 2)
        size //= 4


def _operator_s(driver: Driver, operation: Operation, seconds: float) -> float:
    import torch

    on: dict[str, Any] = {"device": driver.device}
    if operation.operator == "linear":
        m, k, n = operation.m, operation.k, operation.n
        a, b, c = torch.ones(m, k, **on), torch.ones(k, n, **on), torch.ones(m, n, **on)
        return synchronised_s(driver, lambda: torch.mm(a, b, out=c), seconds)
    x, y = torch.ones(operation.m, **on), torch.ones(operation.m, **on)
    return synchronised_s(driver, lambda: torch.neg(x, out=y), seconds)


def _starts(driver: Driver, seconds: float) -> Starts:
    """Costs of starts, from calls that the GPU executes faster than the host starts them."""
    import torch

    number = torch.zeros(1, device=driver.device)

    def operators(count: int) -> Callable[[], None]:
        def call() -> None:
            for _ in range(count):
                number.add_(1)

        return call

    def per(calls: Callable[[int], Callable[[], None]]) -> tuple[float, float]:
        """Seconds of one more operation, and of none."""
        few, many = (synchronised_s(driver, calls(n), seconds) for n in (FEW, MANY))
        each = max((many - few) / (MANY - FEW), 0.0)
        return each, max(few - FEW * each, 0.0)

    operator_s, _ = per(operators)
    launch_s = min(_each_s(driver, "environment", "cuda", seconds, operator_s), operator_s)
    gradient_s = _each_s(driver, "gradient", "eager", seconds, operator_s)
    gap_s, graph_s = per(lambda count: capture(driver, operators(count)))
    return Starts(
        operator_s=operator_s - launch_s,
        gradient_s=max(gradient_s - launch_s, 0.0),
        graph_s=max(graph_s - launch_s, 0.0),
        gap_s=gap_s,
        launch_s=launch_s,
    )


def _each_s(
    driver: Driver, structure: str, variant: str, seconds: float, otherwise_s: float
) -> float:
    """Seconds of one operation of a small kernel, started repeatedly; otherwise_s if the device has
    no such variant."""
    for kernel in small(structure, variant):
        try:
            call = call_on(driver, kernel, variant)
        except UnsupportedError:  # a GPU that only torch drives has no variant in CUDA
            return otherwise_s

        def again(call: Call = call) -> None:
            for _ in range(FEW):
                call()

        return synchronised_s(driver, again, seconds) / FEW / launches(kernel, variant)
    return otherwise_s


def capture(driver: Driver, call: Callable[[], None]) -> Callable[[], None]:
    """Return the work of a call as a CUDA graph; on a device without graphs, the call itself."""
    import torch

    if driver.device.type != "cuda":
        return call
    call()
    torch.cuda.synchronize(driver.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _copies(driver: Driver, seconds: float) -> Copies:
    import torch

    queue = streams_of(driver.device)

    def both(count: int) -> tuple[float, float]:
        there = torch.zeros(count, dtype=torch.uint8, device=driver.device)
        here = queue.staging(there)
        return (
            synchronised_s(driver, lambda: there.copy_(here), seconds),
            synchronised_s(driver, lambda: here.copy_(there), seconds),
        )

    (latency_s, _), (to_s, from_s) = both(8), both(LONGEST)
    return Copies(latency_s, LONGEST / to_s, LONGEST / from_s)
