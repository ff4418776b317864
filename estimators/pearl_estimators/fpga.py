"""Closed forms of FPGA designs that nobody has built: a systolic array, a sum tree for replay.

The cycle counts are those of designs on paper. An output-stationary n×n array finishes one tile of
inner size k after k + 2(n-1) + 1 cycles, and a K-ary sum-tree sampler takes 3 cycles a level plus
1. Assumed: writes to the tree take as long, draws follow each other every 3 cycles, no cycle is
lost between tiles, passes and steps, and the clock is met. A register-transfer design may lose
some; none was made or simulated. The other design, `released`, is in `fpga_released`.
"""

from __future__ import annotations

from math import isqrt

from pearl_devices import Device, FigureError, Kernel
from pearl_devices.fpga import figure, is_released, tree_width
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import ADAM_FLOPS, parameters
from pearl_devices.kernels.replay import prioritised, row_bytes, tree_depth
from pearl_estimators import fpga_released
from pearl_estimators.estimates import Bound, Estimate

BELOW, ABOVE = 0.2, 0.5  # assumed: a built design is rather slower than its form than faster
CYCLES_PER_LEVEL = 3  # address, read, compare; one memory a level, so the interval is 3 too
OPTIMISER_MACS = -(-(ADAM_FLOPS + 3) // 2)  # Adam and a Polyak target, two flops a multiply-add
DDR_LATENCY_S = 100e-9  # assumed where the platform gives no ddr_latency_s
DDR_BURST_BYTES = 64  # DDR4: 8 beats of 64 bits


def gemm_cycles(m: int, k: int, n: int, array: int) -> int:
    """Cycles of A (m×k) · B (k×n) on an output-stationary array×array grid, tile after tile.

    The accumulator in row i, column j of a tile is right after k + i + j + 1 cycles, so a tile of
    r rows and c columns takes k + (r-1) + (c-1) + 1, and k + 2(array-1) + 1 where it is full.
    The sum over all tiles, with m rows and n columns shared among them:
    """
    rows, columns = -(-m // array), -(-n // array)
    return rows * columns * (k - 1) + columns * m + rows * n


def network_cycles(kernel: Kernel, array: int) -> int:
    """Cycles of one forward pass (inference), or of all passes of one gradient step.

    Activations and biases are applied as results leave the array, at no cycle of their own.
    """
    return sum(gemm_cycles(m, k, n, array) for m, k, n in kind_of(kernel).products(kernel))


def optimiser_cycles(kernel: Kernel, array: int) -> int:
    """Cycles of Adam and the target's update: array² units, a multiply-add a cycle each."""
    size = sum(parameters(widths) for widths in kernel.networks.values())
    return -(-size * OPTIMISER_MACS // array**2)


def tree_cycles(depth: int, requests: int) -> int:
    """Cycles from the first of `requests` draws or writes to the last result.

    3·depth + 1 for one; the next one follows 3 cycles later, as every level has its own memory.
    """
    return CYCLES_PER_LEVEL * (requests - 1) + CYCLES_PER_LEVEL * depth + 1


def _times(kernel: Kernel, device: Device, width: int) -> tuple[float, float, float]:
    """(compute, memory, fixed) seconds of one firing, without the doorbell.

    Compute and memory overlap; fixed is what neither hides: DDR latency and pipeline fill.
    """
    clock, ddr = figure(device, "clock_hz"), device.memory_bytes_per_s
    latency = device.figures.get("ddr_latency_s", DDR_LATENCY_S)
    structure = kind_of(kernel).structure
    if structure == "copy":
        return 0.0, kernel.bytes_in / ddr, latency
    if is_released(device):
        return fpga_released.times(kernel, width, clock, ddr)
    if structure == "network":
        array = isqrt(width)
        return network_cycles(kernel, array) / clock, 0.0, 0.0
    if structure == "gradient":
        array, steps = isqrt(width), kernel.dim("steps")
        cycles = network_cycles(kernel, array) + optimiser_cycles(kernel, array)
        # Weights, targets and moments stay on chip; only the batch comes from DDR.
        batch = kernel.dim("batch") * _sample_bytes(kernel)
        return steps * cycles / clock, steps * batch / ddr, latency
    inserts = structure == "insert"
    requests = kernel.dim("envs") if inserts else kernel.dim("batch") * kernel.dim("steps")
    moved = 0.0
    if structure != "prioritise":  # whole rows, each in bursts of its own
        moved = requests * (-(-row_bytes(kernel) // DDR_BURST_BYTES) * DDR_BURST_BYTES)
    if structure == "sample":  # reward and flags of the rows that an n-step return spans
        moved += requests * (kernel.dim("n_step") - 1) * DDR_BURST_BYTES
    if not prioritised(kernel):
        return requests / clock, moved / ddr, latency
    busy = CYCLES_PER_LEVEL * requests
    drain = tree_cycles(tree_depth(kernel), requests) - busy
    return busy / clock, moved / ddr, latency + drain / clock


def _sample_bytes(kernel: Kernel) -> int:
    """One sample of a batch: observations, reward, discount and weight in float32, action."""
    return 4 * (2 * kernel.dim("obs") + 3) + (4 * kernel.dim("act") or 8)


def closed_form(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """The rung closed_form. Latency = doorbell + fixed + max(compute, memory).

    Occupancy = max(compute, memory): the next firing may enter while the doorbell of this one is
    rung or its pipeline drains. `width` counts multiply-add units (DSP blocks): n² of an n×n array.
    An engine does its `steps` gradient steps one after another, so it keeps every latency.

    Raises:
        FigureError: the width is less than the design needs, or a figure is missing.
    """
    least = {"tree": 0, "engine": 1}.get(variant)
    if least is not None and width < least + tree_width(kernel):
        raise FigureError(
            f"kernel {kernel.kind} on {device.name!r}: {variant} needs at least "
            f"{least + tree_width(kernel)} pe, given {width}"
        )
    if variant == "engine":
        return _engine(kernel, device, width)
    compute, memory, fixed = _times(kernel, device, width)
    return _estimate(device, compute, memory, fixed, max(compute, memory), variant)


def _engine(kernel: Kernel, device: Device, width: int) -> Estimate:
    kind = kind_of(kernel)
    array = isqrt(width - tree_width(kernel))
    one = kind.kernel({**kernel.dims, "steps": 1})
    times = [_times(part, device, array * array) for part, _ in kind.parts(one)]
    steps = kernel.dim("steps")
    compute = steps * sum(c for c, _, _ in times)
    memory = steps * sum(m for _, m, _ in times)
    busy = steps * sum(max(c, m) + f for c, m, f in times)
    return _estimate(device, compute, memory, busy - max(compute, memory), busy, "engine")


def _estimate(
    device: Device, compute: float, memory: float, fixed: float, occupancy: float, variant: str
) -> Estimate:
    start = device.overhead_s
    latency = start + fixed + max(compute, memory)
    bound: Bound = "compute" if compute >= memory else "memory"
    if start + fixed > max(compute, memory):
        bound = "overhead"
    return Estimate(
        latency,
        occupancy_s=min(occupancy, latency),
        low_s=latency * (1 - BELOW),
        high_s=latency * (1 + ABOVE),
        rung="closed_form",
        bound_by=bound,
        source=(
            f"{_origin(device)}: {variant} at {figure(device, 'clock_hz') / 1e6:g} MHz, cycles "
            "and clock assumed"
        ),
    )


def _origin(device: Device) -> str:
    if is_released(device):
        return "closed form of PEARL's released design (HeteroRL), not built here"
    return "closed form of a design not built"
