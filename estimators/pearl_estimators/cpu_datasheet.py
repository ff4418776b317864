"""The datasheet rung of a CPU that nobody timed: what a kernel counts, at the costs of another CPU.

A roofline at the peak is three to ten times too fast for small networks, which are calls and
products of a few tiles. So a kernel is counted as for a calibration (`host.features`), each count
costs what it cost on one CPU that was calibrated, REFERENCE, and is scaled to the other: vector
arithmetic by the peak of a core, waits for memory not at all, everything else by the clock. Peak
and clock are those of a lone busy core: its boost; of a hybrid CPU, of a performance core. No
estimate by a data sheet is below what arithmetic takes at that peak, or at the bandwidth of memory
the bytes that no cache holds. Terms
of one kernel kind alone are put together with those of all others: a cost is worth something
elsewhere only if several kinds agree on it. What misses a cache is counted anew, by the caches of
the device's data sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pearl_devices import Device, Kernel, torch_threads
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import parameters
from pearl_devices.kernels.replay import is_prioritised, row_bytes
from pearl_estimators.estimates import Bound, Estimate
from pearl_estimators.host.features import ASSUMED_CACHES, OVERHEAD, terms
from pearl_estimators.host.probe import REFERENCE as REFERENCE_PROBE
from pearl_estimators.host.probe import CpuProbe, stored_probe
from pearl_estimators.roofline import Band, cpu_roofline

REFERENCE = "AMD EPYC with AVX-512, one core of a virtual machine, 2026-11-22"
CORE_FLOPS_PER_S, CLOCK_HZ = 232.6e9, 3.634e9
"""Of its core at boost, as `pearl_devices.discover` tells them: its products ran at 228 to 233
GFLOP/s (docs/estimators.md), 64 flop a cycle, beside a base clock of 2.596 GHz."""

NATIVE: Mapping[str, float] = MappingProxyType(
    {
        "call": 252.8e-9,
        "product": 388.2e-9,
        "tiles": 16.49e-9,
        "cycles": 0.2917e-9,
        "dot_cycles": 1.294e-9,
        "rows": 5.971e-9,
        "numbers": 0.04352e-9,
        "learned": 0.06104e-9,
        "tanh": 0.1788e-9,
        "gradient_step": 4.743e-9,
        "step_on_two": 17.7e-6,
        "envs": 27.25e-9,
        "row": 17.72e-9,
        "leaf": 5.767e-9,
        "level": 5.483e-9,
        "level_inserted": 121.4e-9,
        "child": 0.5408e-9,
        "draws_beyond_2": 106.2e-9,
        "draws_beyond_3": 194.4e-9,
        "leaves_beyond_1": 23.79e-9,
        "leaves_beyond_2": 60.8e-9,
        "bytes_beyond_1": 0.005638e-9,
        "bytes_beyond_2": 0.004441e-9,
    }
)
TORCH: Mapping[str, float] = MappingProxyType(
    {
        "call": 8.173e-6,
        "gradient_step": 9.529e-6,
        "launches": 4.02e-6,
        "operation": 3.441e-6,
        "layer": 816.3e-9,
        "flops": 0.01301e-9,
        "elements": 0.3274e-9,
        "learned": 0.761e-9,
        "numbers": 0.6144e-9,
        "rows": 11.36e-9,
        "tanh": 2.308e-9,
        "time": 8.735e-6,
        "bytes_beyond_1": 0.01397e-9,
        "bytes_beyond_2": 0.01094e-9,
    }
)
"""First word of a term → seconds of one on REFERENCE: least squares of relative errors over the
points of a calibration, 349 of native kernels and 162 of torch's."""

TOGETHER = MappingProxyType(
    {
        **dict.fromkeys(("components", "outputs"), "rows"),
        **dict.fromkeys(("joined", "row_numbers", "turned", "turned_singly"), "numbers"),
        **dict.fromkeys(("adam", "follow"), "learned"),
        **dict.fromkeys(("child_drawn", "child_inserted", "child_written"), "child"),
        **dict.fromkeys(("leaf_drawn", "leaf_inserted", "leaf_written"), "leaf"),
        **dict.fromkeys(("level_drawn", "level_written"), "level"),
        "tanh_back": "tanh",
        "row_later": "row",
        "backward_operation": "operation",
        "elements_back": "elements",
    }
)
"""First word of a term of the calibrated model → the term it is one of here."""

VECTOR = ("cycles", "dot_cycles", "flops", "learned", "tanh", "elements")
"""Terms that a wider vector makes faster."""

TORCH_FLOPS_PER_CYCLE = 32.0
"""That torch uses of a core's: held to AVX2 its products were as fast on REFERENCE as without, 92
to 98 GFLOP/s (docs/estimators.md). Of Intel's cores with AVX-512 it is assumed."""

RATES = ("64", "256")
"""Sides of the products by whose rates a probe scales vector arithmetic."""

SHARED = (*VECTOR, "numbers", "rows")
"""Terms of torch that its threads share out; of memory, what lies beyond a cache is shared too."""

DOUBLED, JOIN_S = 0.8, 5e-6
"""Of several threads of torch: the share of a thread's speed that each doubling leaves, and the
seconds that each doubling adds to an operation, to start and to join them. Of two threads they are
fitted to 48 gradient steps on the host of REFERENCE (2026-11-23), of more assumed; the band is
wider by the root of TORCH_BAND for each doubling."""

COUNTED = ("network", "gradient", "fused", "advantages", "sample", "prioritise", "copy")
"""Structures of kernels whose costs agree; of others a roofline is nearer."""

NATIVE_BAND, TORCH_BAND = Band(2.2, 2.2), Band(1.5, 1.5)
"""Nine in ten kernels of a family that is left out of the fit are within these, on REFERENCE
(`python -m benchmarks.estimators sheet`)."""

TORCH_BAND_ELSEWHERE = Band(1.7, 2.1)
"""Of CPUs whose core is unlike: nine in ten of torch's kernels are within it where the host
of REFERENCE is held to AVX2, its only stand-in for another CPU; others may be further off."""
ALIKE = 1.5
"""Cores within this factor of flops a cycle are alike (assumed)."""

DISPATCH_ELSEWHERE = 1.5
"""What torch takes to start an operator on a core unlike REFERENCE's, over REFERENCE at its clock.
A gradient step of DQN 64 wide took 2.17 times its estimate on a Zen 3 whose cores others kept busy;
load alone cost REFERENCE's own kind of host a factor of 1.4 (2026-11-25)."""


@dataclass(frozen=True)
class Parts:
    """Seconds of one firing by what they are spent on.

    overhead_s, compute_s, memory_s: seconds of starting, of arithmetic and of memory.
    """

    overhead_s: float
    compute_s: float
    memory_s: float


def counted(kernel: Kernel) -> bool:
    """Whether a kernel has such counts, and no network of the user's own."""
    kind = kind_of(kernel)
    plain = not (kernel.modules or kernel.dims.get("stack") or kind.assumed)
    inserts = kind.structure == "insert" and is_prioritised(kernel)
    return plain and (inserts or kind.structure in COUNTED)


def counts(kernel: Kernel, device: Device, variant: str) -> dict[str, float]:
    """Term → number, the same whatever machine asks."""
    found: dict[str, float] = {}

    def add(name: str, number: float) -> None:
        found[name] = found.get(name, 0.0) + number

    for name, number in terms(kernel, variant).items():
        word = name.partition(" ")[0]
        if not word.startswith(("miss", "far", "between")):  # by the caches of this machine
            add(TOGETHER.get(word, word), number)
    if variant.endswith("-pair"):
        add("step_on_two", kernel.dim("steps"))
    first, second, third = (device.figures.get(n, size) for n, size in ASSUMED_CACHES.items())
    if "capacity" in kernel.dims and "batch" in kernel.dims:
        draws = kernel.dim("batch") * kernel.dim("steps")
        ring = float(kernel.dim("capacity") * row_bytes(kernel)) if "obs" in kernel.dims else 0.0
        add("draws_beyond_2", draws * _beyond(ring, second))
        add("draws_beyond_3", draws * _beyond(ring, third))
        if is_prioritised(kernel):
            leaves = 4.0 * kernel.dim("capacity")
            add("leaves_beyond_1", draws * _beyond(leaves, first))
            add("leaves_beyond_2", draws * _beyond(leaves, second))
    size = sum(parameters(widths) for widths in kernel.networks.values())
    learns = "steps" in kernel.dims
    held, passes = (20.0 * size, kernel.dim("steps")) if learns else (4.0 * size, 1)
    add("bytes_beyond_1", passes * held * _beyond(held, first))
    add("bytes_beyond_2", passes * held * _beyond(held, second) if learns else 0.0)
    return found


def _beyond(size: float, cache: float) -> float:
    """Share of random accesses to so many bytes that a cache does not hold."""
    return max(0.0, 1.0 - cache / size) if size > 0 else 0.0


def seconds(kernel: Kernel, device: Device, variant: str, probe: CpuProbe | None = None) -> Parts:
    """What one firing takes on one core of a device, on several where the variant has several.

    probe: of its host, by which kernels of torch are scaled: products by its rates, operators by
        what they took, waits for memory by its rate. Of native kernels the vector arithmetic is, by
        the rate of a native product.
    """
    threads = torch_threads.threads_of(variant)
    shared, joined_s = _several(threads)
    shared *= rate(device, threads) / (threads * rate(device, 1))
    torch = variant.startswith("torch")
    costs = TORCH if torch else NATIVE
    by_vector, by_memory = _by_vector(device, torch), 1.0
    if probe and not torch:
        by_vector = REFERENCE_PROBE.native_flops_per_s / probe.native_flops_per_s
    by_product = by_vector
    by_clock = CLOCK_HZ / device.figures.get("clock_hz", CLOCK_HZ)
    by_dispatch = by_clock * (DISPATCH_ELSEWHERE if torch and not _alike(device) else 1.0)
    if probe and torch:
        by_product = math.prod(REFERENCE_PROBE.products[s] / probe.products[s] for s in RATES)
        by_product **= 1 / len(RATES)
        by_memory = REFERENCE_PROBE.memory_bytes_per_s / probe.memory_bytes_per_s
        gradient = kind_of(kernel).structure == "gradient"
        name = "gradient_s" if gradient else "operator_s"
        by_clock = by_dispatch = getattr(probe, name) / getattr(REFERENCE_PROBE, name)
    spent = {"overhead": 0.0, "compute": 0.0, "memory": 0.0}
    for name, number in counts(kernel, device, variant).items():
        cost = number * costs.get(name, 0.0)
        if "_beyond_" in name or name in SHARED:
            cost /= shared
        if name == "operation":
            spent["overhead"] += joined_s * number
        if "_beyond_" in name:
            spent["memory"] += cost * by_memory
        elif name in VECTOR:
            spent["compute"] += cost * (by_product if name == "flops" else by_vector)
        else:
            overhead = name in (*OVERHEAD, "launches", "step_on_two")
            if overhead:
                spent["overhead"] += cost * by_dispatch
            else:
                spent["compute"] += cost * by_clock
    return Parts(spent["overhead"], spent["compute"], spent["memory"])


def rate(device: Device, cores: float) -> float:
    """Peak flop/s of so many cores: of a hybrid CPU the performance cores first."""
    first = device.figures.get("performance_cores", float(device.width))
    share = device.figures.get("efficient_share", 1.0)

    def worth(count: float) -> float:
        return min(count, first) + share * max(0.0, count - first)

    return device.peak_flops_per_s * worth(cores) / worth(device.width)


def least_s(kernel: Kernel, device: Device, cores: float) -> float:
    """Seconds that no firing can be below: its arithmetic at the peak of so many cores, the bytes
    that its largest cache does not hold at the bandwidth of memory."""
    held = max(device.figures.get(n, size) for n, size in ASSUMED_CACHES.items())
    moved = max(0.0, kernel.bytes_in + kernel.bytes_out - held)
    return max(kernel.flops / rate(device, cores), moved / device.memory_bytes_per_s)


def _band(device: Device, variant: str) -> Band:
    if not variant.startswith("torch"):
        return NATIVE_BAND
    return TORCH_BAND if _alike(device) else TORCH_BAND_ELSEWHERE


def _alike(device: Device) -> bool:
    """Whether a core does about as many flops a cycle as REFERENCE's: a sign of its generation."""
    per_cycle = rate(device, 1) / device.figures.get("clock_hz", CLOCK_HZ)
    return 1 / ALIKE <= per_cycle * CLOCK_HZ / CORE_FLOPS_PER_S <= ALIKE


def _by_vector(device: Device, torch: bool) -> float:
    """By which vector arithmetic takes longer than on REFERENCE."""
    core = rate(device, 1)
    if not torch:
        return CORE_FLOPS_PER_S / core
    most = TORCH_FLOPS_PER_CYCLE * device.figures.get("clock_hz", CLOCK_HZ)
    return TORCH_FLOPS_PER_CYCLE * CLOCK_HZ / min(core, most)


def more_threads(
    few: Estimate, kernel: Kernel, device: Device, variant: str, wider: str
) -> Estimate:
    """A kernel by more threads of torch than were timed: as much faster than `few`, its estimate in
    `variant`, as these costs say."""
    by = _whole_s(kernel, device, wider) / _whole_s(kernel, device, variant)
    threads = torch_threads.threads_of(wider)
    doubt = _doubt(threads / torch_threads.threads_of(variant))
    return replace(
        few,
        latency_s=by * few.latency_s,
        occupancy_s=by * few.occupancy_s,
        low_s=by * few.low_s / doubt,
        high_s=by * few.high_s * doubt,
        rung="probed",
        source=f"{few.source} with {torch_threads.threads_of(variant)} threads, scaled to "
        f"{threads} by the costs of a data sheet; band assumed",
    )


def _whole_s(kernel: Kernel, device: Device, variant: str) -> float:
    found = seconds(kernel, device, variant)
    return found.overhead_s + found.compute_s + found.memory_s


def _several(threads: int) -> tuple[float, float]:
    """By which so many threads of torch are faster than one, and the seconds that each operation
    takes to start and to join them."""
    doublings = math.log2(threads)
    return threads * DOUBLED**doublings, doublings * JOIN_S


def _doubt(times: float) -> float:
    """By which a band is wider of so many times as many threads."""
    return float(TORCH_BAND.above ** (0.5 * math.log2(times)))


def cpu_datasheet(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """The datasheet rung of a CPU, or the probed one where it is here and probed: by counts; of
    kernels without such counts a roofline."""
    threads = torch_threads.threads_of(variant)
    doubt = _doubt(threads)
    if not counted(kernel):
        shared, joined_s = _several(threads)
        flops_per_s = rate(device, width) * shared / threads
        found = cpu_roofline(kernel, device, variant, flops_per_s, joined_s)
        return replace(found, low_s=found.low_s / doubt, high_s=found.high_s * doubt)
    probe = stored_probe() if device.real and not device.host else None
    parts = seconds(kernel, device, variant, probe)
    bare_s = 0.0 if probe else least_s(kernel, device, width)
    latency_s = max(parts.overhead_s + parts.compute_s + parts.memory_s, bare_s)
    most = max(parts.overhead_s, parts.compute_s, parts.memory_s)
    bound: Bound = "overhead" if most == parts.overhead_s else "compute"
    band = _band(device, variant)
    return Estimate(
        latency_s,
        low_s=max(latency_s / (band.below * doubt), bare_s),
        high_s=latency_s * band.above * doubt,
        rung="probed" if probe else "datasheet",
        bound_by="memory" if most == parts.memory_s else bound,
        source=f"counts at the costs of an {REFERENCE}, scaled to {device.model or device.name}"
        + (f" by {probe.source}" if probe else "")
        + (f" and {threads} threads" if threads > 1 else "")
        + "; band assumed",
    )
