"""The datasheet level of a CPU that was not timed: counts of a kernel at the costs of another CPU.

A roofline at the peak is three to ten times too fast for small networks, which consist of calls and
products of a few tiles. So a kernel is counted as for a calibration (`host.features`). The cost of
each count comes from one calibrated CPU, REFERENCE, and is scaled to the other CPU: vector
arithmetic by the peak of a core, waits for memory not at all, everything else by the clock. Peak
and clock are those of a single busy core at boost; for a hybrid CPU, of a performance core. No
datasheet estimate is below the time of its arithmetic at that peak, or of its bytes outside all
caches at the memory bandwidth. Terms of one kernel kind are merged with those of all others,
because a cost is valid for another CPU only if several kinds agree on it. Cache misses are counted
for the caches of the device's data sheet.
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
from pearl_estimators.host.probe import CpuProbe, load_probe
from pearl_estimators.roofline import Band, cpu_roofline

REFERENCE = "AMD EPYC with AVX-512, one core of a virtual machine, 2026-11-22"
CORE_FLOPS_PER_S, CLOCK_HZ = 232.6e9, 3.634e9
"""Figures of its core at boost, as `pearl_devices.discover` reads them: its products ran at 228 to
233 GFLOP/s (docs/estimators.md), 64 flops a cycle; its base clock is 2.596 GHz."""

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
"""First word of a term → seconds of one such term on REFERENCE: least squares of relative errors
over the points of a calibration, 349 of native kernels and 162 of torch's."""

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
"""First word of a term of the calibrated model → its term here."""

VECTOR = ("cycles", "dot_cycles", "flops", "learned", "tanh", "elements")
"""Terms that a wider vector makes faster."""

SHARES = {
    "cycles": "product_share", "dot_cycles": "product_share", "tanh": "tanh_share",
    "learned": "adam_share",
}  # fmt: skip
"""Term of native kernels → the figure of a device that says which share of a core's peak it
reaches, over REFERENCE's share; 1 if the device has none (`pearl_devices.cores`)."""

TORCH_FLOPS_PER_CYCLE = 32.0
"""Widest vectors that torch uses: limited to AVX2, its products were as fast on REFERENCE as
without the limit, 92 to 98 GFLOP/s (docs/estimators.md). For Intel's cores with AVX-512 it is
assumed."""

RATES = ("64", "256")
"""Sides of the products whose probed rates scale vector arithmetic."""

SHARED = (*VECTOR, "numbers", "rows")
"""Terms of torch that its threads divide; of memory, accesses beyond a cache are divided too."""

DOUBLED, JOIN_S = 0.8, 5e-6
"""For several threads of torch: the share of a thread's speed that remains at each doubling, and
the seconds that each doubling adds to an operation for starting and joining. For two threads they
are fitted to 48 gradient steps on the host of REFERENCE (2026-11-23); for more they are assumed.
The band is wider by the root of TORCH_BAND for each doubling."""

COUNTED = ("network", "gradient", "fused", "advantages", "sample", "prioritise", "copy")
"""Structures of kernels whose costs agree; for others a roofline is closer."""

NATIVE_BAND, TORCH_BAND = Band(2.2, 2.2), Band(1.5, 1.5)
"""Encloses nine in ten kernels of a family that is left out of the fit, on REFERENCE
(`python -m benchmarks.estimators sheet`)."""

TORCH_BAND_ELSEWHERE = Band(1.7, 2.1)
"""For CPUs whose core differs: it encloses nine in ten of torch's kernels when the host of
REFERENCE is limited to AVX2, the only stand-in for another CPU. Other CPUs may be further off."""
ALIKE = 1.5
"""Cores whose flops per cycle are within this factor count as alike (assumed)."""

DISPATCH_ELSEWHERE = 1.5
"""Seconds to start a torch operator on a core unlike REFERENCE's, over REFERENCE at its clock. A
gradient step of DQN 64 wide took 2.17 times its estimate on a Zen 3 whose cores were busy; load
alone cost REFERENCE's kind of host a factor of 1.4 (2026-11-25)."""


@dataclass(frozen=True)
class Parts:
    """Seconds of one firing by cause.

    overhead_s, compute_s, memory_s: seconds of starting, of arithmetic and of memory.
    """

    overhead_s: float
    compute_s: float
    memory_s: float


def has_counts(kernel: Kernel) -> bool:
    """Return whether a kernel has such counts, and no user-defined network."""
    kind = kind_of(kernel)
    plain = not (kernel.modules or kernel.dims.get("stack") or kind.assumed)
    inserts = kind.structure == "insert" and is_prioritised(kernel)
    return plain and (inserts or kind.structure in COUNTED)


def counts(kernel: Kernel, device: Device, variant: str) -> dict[str, float]:
    """Return term → count, the same on every machine."""
    found: dict[str, float] = {}

    def add(name: str, number: float) -> None:
        found[name] = found.get(name, 0.0) + number

    for name, number in terms(kernel, variant).items():
        word = name.partition(" ")[0]
        if not word.startswith(("miss", "far", "between")):  # terms of this machine's caches
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
    """Share of random accesses to `size` bytes that a cache does not hold."""
    return max(0.0, 1.0 - cache / size) if size > 0 else 0.0


def seconds(kernel: Kernel, device: Device, variant: str, probe: CpuProbe | None = None) -> Parts:
    """Return the seconds of one firing, on as many cores as the variant takes.

    probe: of the device's host. For torch it scales products by its rates, operators by their times
        and waits for memory by its rate; for native kernels vector arithmetic, by the rate of a
        native product.
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
        if share := "" if torch else SHARES.get(name, ""):
            cost /= device.figures.get(share, 1.0)
            if probe:  # its product has the core's share already
                cost *= device.figures.get("product_share", 1.0)
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
    """Return peak flop/s of `cores` cores; a hybrid CPU uses its performance cores first."""
    first = device.figures.get("performance_cores", float(device.width))
    share = device.figures.get("efficient_share", 1.0)

    def worth(count: float) -> float:
        return min(count, first) + share * max(0.0, count - first)

    return device.peak_flops_per_s * worth(cores) / worth(device.width)


def least_s(kernel: Kernel, device: Device, cores: float) -> float:
    """Return a lower bound of a firing in seconds: its arithmetic at the peak of the cores, and its
    bytes outside the largest cache at the bandwidth of memory."""
    held = max(device.figures.get(n, size) for n, size in ASSUMED_CACHES.items())
    moved = max(0.0, kernel.bytes_in + kernel.bytes_out - held)
    return max(kernel.flops / rate(device, cores), moved / device.memory_bytes_per_s)


def _band(device: Device, variant: str) -> Band:
    if not variant.startswith("torch"):
        return NATIVE_BAND
    return TORCH_BAND if _alike(device) else TORCH_BAND_ELSEWHERE


def _alike(device: Device) -> bool:
    """Whether a core's flops per cycle are near REFERENCE's, a sign of its generation."""
    per_cycle = rate(device, 1) / device.figures.get("clock_hz", CLOCK_HZ)
    return 1 / ALIKE <= per_cycle * CLOCK_HZ / CORE_FLOPS_PER_S <= ALIKE


def _by_vector(device: Device, torch: bool) -> float:
    """The factor by which vector arithmetic takes longer than on REFERENCE."""
    core = rate(device, 1)
    if not torch:
        return CORE_FLOPS_PER_S / core
    most = TORCH_FLOPS_PER_CYCLE * device.figures.get("clock_hz", CLOCK_HZ)
    return TORCH_FLOPS_PER_CYCLE * CLOCK_HZ / min(core, most)


def scale_threads(
    few: Estimate, kernel: Kernel, device: Device, variant: str, wider: str
) -> Estimate:
    """Estimate a kernel with more threads of torch than were timed: `few`, the estimate in
    `variant`, times the ratio of these costs."""
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
    """Return the speed-up by torch's threads, and the seconds that each operation adds for starting
    and joining them."""
    doublings = math.log2(threads)
    return threads * DOUBLED**doublings, doublings * JOIN_S


def _doubt(times: float) -> float:
    """The factor by which a band is wider for `times` times as many threads."""
    return float(TORCH_BAND.above ** (0.5 * math.log2(times)))


def cpu_datasheet(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Return the datasheet estimate of a CPU, or the probed one if this host is probed: by counts,
    or by a roofline for kernels without counts."""
    threads = torch_threads.threads_of(variant)
    doubt = _doubt(threads)
    if not has_counts(kernel):
        shared, joined_s = _several(threads)
        flops_per_s = rate(device, width) * shared / threads
        found = cpu_roofline(kernel, device, variant, flops_per_s, joined_s)
        return replace(found, low_s=found.low_s / doubt, high_s=found.high_s * doubt)
    probe = load_probe() if device.real and not device.host else None
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
