"""The time of a kernel's operators on a GPU that executes them one after another.

This is the model of `eager` and `graph` on the datasheet level. The operators are those of the
kind: its matrix products, and the others that its record says torch starts, each of which reads its
inputs from memory and writes its result there. A product consists of tiles of the output. Each
multiprocessor (SM) computes its part of them, wave after wave, and no tile is faster than its chain
of sums. cuBLAS splits a long inner size into chunks if the tiles leave SMs idle; a second operator
sums the chunks.

The constants are fitted to published times of single kernels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from pearl_devices import Device, Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import size
from pearl_estimators.roofline import base_variant

F32 = 4
TILES = ((32, 32, 0.5), (64, 64, 0.75), (128, 64, 1.0))
"""Rows and columns of a tile, and its rate over that of the largest tile. Small tiles read more
numbers per product (NVIDIA, "CUTLASS: fast linear algebra in CUDA C++"; the ratios are assumed)."""
CHUNK = 256
"""Least inner size of a chunk: assumed."""
WIDE = 192.0
"""flops per cycle above which an SM has 128 lanes (256 flops), else 64 (128 flops)."""
L2_BYTES = 4 * 2.0**20
"""Cache size if no figure gives it: the smallest of the catalogue."""
ADAM_STREAMS, STREAMS = 3, 3
"""Arrays that an operator of the optimiser, or another with two inputs, reads and writes."""


@dataclass(frozen=True)
class Rates:
    """Constants of the model.

    element_s: least time of an element-wise operator or reduction as a node of a graph.
    product_s: time of a product besides its sums.
    step_cycles: least cycles of one step along the inner size: sums of a tile wait for each other.
    share, wide_share: share of the peak that large tiles reach on SMs of 64 lanes, and of 128
        lanes, whose shared memory is no faster.
    l2_bytes_per_cycle: of one SM, from the cache that all share.
    stream_s: additional time of an operator that is started by itself.
    """

    element_s: float = 1.0e-6
    product_s: float = 1.27e-6
    step_cycles: float = 32.0
    share: float = 0.92
    wide_share: float = 0.59
    l2_bytes_per_cycle: float = 20.5
    stream_s: float = 1.14e-6


RATES = Rates()
"""Fitted to all published points."""


@dataclass(frozen=True)
class Queue:
    """Seconds of all operators of a firing.

    operators: their number. start_s: sum of their shortest times. compute_s, memory_s: time beyond
    these of operators bound by arithmetic, and by memory. bytes: bytes that they move.
    """

    operators: float
    start_s: float
    compute_s: float
    memory_s: float
    bytes: float

    @property
    def seconds(self) -> float:
        return self.start_s + self.compute_s + self.memory_s


def clock_hz(device: Device) -> float:
    """Return the clock of the SMs; without a figure, that of SMs with 128 lanes at the peak."""
    return device.figures.get("clock_hz", device.peak_flops_per_s / (256.0 * device.width))


def moved_s(device: Device, moved: float, width: int, rates: Rates = RATES) -> float:
    """Return seconds of `moved` bytes of one operator: through the cache that all SMs share if it
    holds them, else through memory."""
    rate = device.memory_bytes_per_s
    if moved <= device.figures.get("l2_bytes", L2_BYTES):
        rate = max(rate, rates.l2_bytes_per_cycle * width * clock_hz(device))
    return moved / rate


def product_s(
    device: Device, shape: tuple[int, int, int], width: int, rates: Rates = RATES
) -> tuple[float, float]:
    """Return the seconds of a float32 product (m, k, n) on `width` SMs beyond its shortest time, by
    arithmetic and by memory; one of the two is 0."""
    m, k, n = shape
    moved = moved_s(device, float(F32 * (m * k + k * n + m * n)), width, rates)
    hz = clock_hz(device)
    per_cycle = device.peak_flops_per_s / (device.width * hz)
    share = rates.wide_share if per_cycle > WIDE else rates.share
    cycles = _cycles(m, k, n, width, per_cycle * share, rates.step_cycles, rates.element_s * hz)
    return (cycles / hz, 0.0) if cycles / hz >= moved else (0.0, moved)


@cache
def _cycles(m: int, k: int, n: int, sms: int, flops: float, step: float, joined: float) -> float:
    """Cycles of the fastest way to split a product. flops: of an SM per cycle; joined: cycles of
    the operator that sums chunks."""
    found = math.inf
    for rows, columns, rate in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        chunks = 1
        while True:
            waves = math.ceil(tiles * chunks / sms)
            each = max(step, waves * 2 * rows * columns / (flops * rate))
            found = min(found, math.ceil(k / chunks) * each + joined * (chunks > 1))
            chunks *= 2
            if tiles * chunks > sms or k < chunks * CHUNK:
                break
    return found


def elementwise(kernel: Kernel) -> Iterator[tuple[float, float]]:
    """Yield (operators of a firing other than products, bytes that each reads and writes)."""
    kind = kind_of(kernel)
    left = kind.operations(kernel) - kind.rounds(kernel) * len(kind.products(kernel))
    if kind.structure == "gradient":
        for count, moved in _of_gradient_steps(kernel):
            if count > 0:
                left -= count
                yield count, moved
        networks = kernel.networks or {"": (1,)}
        outputs = max(int(layers[-1]) for layers in networks.values())
        yield max(left, 0.0), float(STREAMS * F32 * kernel.dim("batch") * outputs)
        return
    shapes = kind.rounds(kernel) * sum(
        F32 * (m * k + k * n + m * n) for m, k, n in kind.products(kernel)
    )
    rest = max(kernel.bytes_in + kernel.bytes_out - shapes, 0.0)
    if kind.structure == "network":
        for count, numbers in _activations(kernel, next(iter(kernel.networks), "")):
            left -= count
            yield count, float(2 * F32 * kernel.dim("envs") * numbers)
    if left > 0:
        yield left, rest / left


def _activations(kernel: Kernel, network: str) -> Iterator[tuple[float, float]]:
    """Return (operators of a forward pass except products, numbers per row that each writes)."""
    own = kernel.modules.get(network)
    if own:
        yield own.operations, own.numbers / own.operations
    elif network:
        for width in kernel.layers(network)[1:-1]:
            yield 1.0, float(width)


def _of_gradient_steps(kernel: Kernel) -> Iterator[tuple[float, float]]:
    steps, batch = kernel.dim("steps"), kernel.dim("batch")
    for name, runs in kind_of(kernel).passes(kernel).items():
        for count, numbers in _activations(kernel, name):
            row = float(F32 * batch * numbers)
            yield steps * runs.forward * count, 2 * row
            back = 2 if name in kernel.modules else 1  # a module: two gradients per operation
            yield steps * (runs.backward * back + runs.through) * count, STREAMS * row
        if name not in kernel.modules:
            for width in kernel.layers(name)[1:]:  # gradients of biases
                yield steps * runs.backward, float(F32 * batch * width)
        held = F32 * size(kernel, name)
        yield steps * runs.adam * 10, float(ADAM_STREAMS * held)
        yield steps * runs.follow, float(STREAMS * held)


def queue(
    kernel: Kernel, device: Device, width: int, *, alone: bool, rates: Rates = RATES
) -> Queue:
    """Return the operators of one firing on `width` SMs. alone: each is started by itself instead
    of as a node of a graph."""
    kind = kind_of(kernel)
    rounds, more_s = kind.rounds(kernel), rates.stream_s if alone else 0.0
    operators = start_s = compute_s = memory_s = moved = flops = 0.0
    for shape, times in Counter(kind.products(kernel)).items():
        compute, memory = product_s(device, shape, width, rates)
        count, (m, k, n) = rounds * times, shape
        operators += count
        start_s += count * (rates.product_s + more_s)
        compute_s += count * compute
        memory_s += count * memory
        flops += count * 2.0 * m * k * n
        moved += count * F32 * (m * k + k * n + m * n)
    compute_s = max(compute_s, flops / (device.sustained_flops_per_s * width / device.width))
    others_s = 0.0
    for count, each in elementwise(kernel):
        operators += count
        start_s += count * (rates.element_s + more_s)
        others_s += count * moved_s(device, each, width, rates)
        moved += count * each
    # Operators outside the record's products: networks of modules, Adam and losses.
    rate = device.sustained_flops_per_s * width / device.width
    rest_s = max(kernel.flops - flops, 0.0) / (rates.wide_share * rate)
    if rest_s > others_s:
        return Queue(operators, start_s, compute_s + rest_s, memory_s, moved)
    return Queue(operators, start_s, compute_s, memory_s + others_s, moved)


def moved_bytes(kernel: Kernel, device: Device, variant: str, width: int) -> float:
    """Return the bytes that one firing moves: for torch's variants, those of every operator; else
    the kernel's own arrays."""
    if base_variant(variant) in ("eager", "graph"):
        return queue(kernel, device, width, alone=False).bytes
    return kernel.bytes_in + kernel.bytes_out
