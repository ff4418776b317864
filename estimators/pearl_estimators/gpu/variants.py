"""The datasheet rung of a GPU: what starting a kernel and its work cost, by variant.

eager: torch starts operator by operator, and the host is slower at that than the GPU at working
them off. graph: the same operators, started once. cuda: a launch or a few, written by hand. fused:
one launch, and one streaming multiprocessor (SM) that works out of its shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pearl_devices import Device, Kernel
from pearl_devices.kernels import kind_of
from pearl_estimators.estimates import Estimate
from pearl_estimators.roofline import ROOFLINE, Band, launches, of_terms, way

KERNEL_BAND = Band(2.0, 3.0)  # assumed: hosts, drivers and libraries differ
BY_HAND_BAND = Band(3.0, 4.0)  # assumed: nobody has timed these kernels yet
FLOAT64_SHARE = (
    1 / 64
)  # of float32's peak where no figure says: NVIDIA's GeForce (whitepaper GA102)
CHAIN = 8.0  # cycles from one of a thread's operations to the next that needs it: assumed
WAIT_S = 0.5e-6  # one access to memory that another waits for: assumed, 400 to 800 cycles
SHARED_BYTES_PER_CYCLE = 128.0  # of one SM (CUDA C++ Programming Guide, shared memory, 32 banks)
SHARED_BYTES_PER_FLOP = 1.0  # of a product whose threads hold 4 x 4 results: 8 numbers, 16 sums
PHASE_S = 0.3e-6  # one operator of a fused kernel, from barrier to barrier: assumed, 500 cycles
CLOCK_HZ = 1.4e9  # where no figure says: assumed


@dataclass(frozen=True)
class Starts:
    """Seconds of the host, beside those of a launch; gap_s is the GPU's.

    operator_s: one eager operator. gradient_s: one with gradients, on average. graph_s: one graph.
    gap_s: from one operator of a graph to the next. launch_s: one launch; None: as the platform has
    it (`Device.overhead_s`).
    """

    operator_s: float = 3e-6
    gradient_s: float = 10e-6
    graph_s: float = 3e-6
    gap_s: float = 0.9e-6
    launch_s: float | None = None


@dataclass(frozen=True)
class Copies:
    """Between host and GPU. latency_s: of 8 bytes; the rates are of large ones."""

    latency_s: float
    to_device_bytes_per_s: float
    to_host_bytes_per_s: float


ASSUMED = Starts()
"""Where a GPU was not timed. gradient_s: with a launch 15 us; LeanRL's README has eager SAC at 130
and TD3 at 247 env steps a second on an H100, 12 to 18 us for each operator of a step. gap_s: the
documentation of CUDA.jl has 80 small kernels as a graph in 70 us. operator_s and graph_s are
assumed."""


def starts_of(device: Device) -> Starts:
    """Starts of a GPU that was not timed: what its host takes for an operator by its figures
    `operator_s` and `gradient_s`, else by the probe of this host where it is here; the rest is
    assumed."""
    from pearl_estimators.host.probe import figures

    known = {**(figures() if device.real and not device.host else {}), **device.figures}
    found = {n: known[n] for n in ("operator_s", "gradient_s") if n in known}
    return replace(ASSUMED, **found)


def start_s(kernel: Kernel, device: Device, variant: str, starts: Starts = ASSUMED) -> float:
    """Seconds until all of a firing is started, while the GPU has nothing to do."""
    count = launches(kernel, variant)
    launch_s = device.overhead_s if starts.launch_s is None else starts.launch_s
    if way(variant) == "eager":
        gradient = kind_of(kernel).structure == "gradient"
        return count * (launch_s + (starts.gradient_s if gradient else starts.operator_s))
    if way(variant) == "graph":
        return launch_s + starts.graph_s + starts.gap_s * kind_of(kernel).operations(kernel)
    return count * launch_s


def gpu_roofline(
    kernel: Kernel, device: Device, variant: str, width: int, starts: Starts = ASSUMED
) -> Estimate:
    """Starts + max(flops / rate, bytes / bandwidth), of a variant on `width` SMs."""
    kind, clock_hz = kind_of(kernel), device.figures.get("clock_hz", CLOCK_HZ)
    rate = device.sustained_flops_per_s * width / device.width
    moved, bandwidth = kernel.bytes_in + kernel.bytes_out, device.memory_bytes_per_s
    by_hand, waits_s = way(variant) not in ("eager", "graph"), 0.0
    overhead_s = start_s(kernel, device, variant, starts)
    if way(variant) == "fused":
        moved += SHARED_BYTES_PER_FLOP * kernel.flops
        bandwidth = SHARED_BYTES_PER_CYCLE * clock_hz
        waits_s = PHASE_S * kind.operations(kernel)
    elif kind.structure == "environment":
        each = kernel.flops / kernel.dim("envs")
        whole = device.figures.get("float64_flops_per_s", FLOAT64_SHARE * device.peak_flops_per_s)
        rate = whole * width / device.width
        waits_s = CHAIN * each / clock_hz
    elif by_hand and kind.accesses(kernel):
        waits_s = WAIT_S * kind.accesses(kernel) / lanes_of(kernel)
    elif by_hand and "horizon" in kernel.dims and kind.structure == "advantages":
        waits_s = WAIT_S * kernel.dim("horizon")
    compute_s, memory_s = kernel.flops / rate, moved / bandwidth
    found = of_terms(
        overhead_s,
        compute_s,
        memory_s,
        BY_HAND_BAND if by_hand else KERNEL_BAND,
        f"{ROOFLINE}: {launches(kernel, variant):g} launches, variant {variant}, + max(flops / "
        f"rate, bytes / bandwidth) of {device.model or device.name}; band assumed"
        + ("; passes assumed, nobody counted them" if kind.assumed else ""),
        waits_s,
    )
    if way(variant) != "eager":
        return found
    later = 1 - 1 / launches(kernel, variant)  # all but the first start while the GPU works
    left = 1 - min(later * overhead_s, max(compute_s, memory_s)) / found.latency_s
    return scaled(found, left)


def scaled(found: Estimate, share: float) -> Estimate:
    """A share of an estimate, its band alike."""
    seconds = (found.latency_s, found.occupancy_s, found.low_s, found.high_s)
    latency_s, occupancy_s, low_s, high_s = (share * each for each in seconds)
    return replace(found, latency_s=latency_s, occupancy_s=occupancy_s, low_s=low_s, high_s=high_s)


def lanes_of(kernel: Kernel) -> int:
    """Accesses of a firing that need not wait for each other: rows of a batch, or environments."""
    return kernel.dim("batch" if "batch" in kernel.dims else "envs")
