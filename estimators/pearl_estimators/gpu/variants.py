"""The datasheet level of a GPU: costs of starting a kernel and of its work, by variant.

eager: torch starts operator by operator, and the GPU executes them in the meantime; with small
operators the host is slower. graph: the same operators, started once. cuda: hand-written, a launch
or a few. `gpu.queue` gives the operators' work of the first two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pearl_devices import Device, Kernel
from pearl_devices.gpu.kernels import find_written
from pearl_devices.kernels import kind_of
from pearl_estimators.estimates import Bound, Estimate
from pearl_estimators.gpu.queue import RATES, Rates, clock_hz, queue
from pearl_estimators.roofline import ROOFLINE, Band, base_variant, of_terms

KERNEL_BAND = Band(1.8, 2.0)
"""Encloses nine in ten published times whose sources were left out of the fit."""
BY_HAND_BAND = Band(3.0, 4.0)  # assumed: these kernels have not been timed yet
FLOAT64_SHARE = 1 / 64  # of float32's peak without a figure: NVIDIA's GeForce (whitepaper GA102)
CHAIN = 8.0  # cycles between two dependent operations of a thread: assumed
WAIT_S = 0.5e-6  # one dependent memory access: assumed, 400 to 800 cycles
LATER_S = 2.1e-6
"""A launch while the GPU is busy: published are 1.6 (A100), 2.4 (GTX 1660 Ti), 3.3 (CUDA.jl) and 4
to 6 us (RTX 5070 Ti); fitted to them."""
HOST_HZ, HOST_POWER = 3.6e9, 1.5
"""Clock of the host's core for which ASSUMED holds, and the power with which a faster core starts
operators sooner, because it is also newer: training of Isaac-Cartpole takes 2.1 times as long with
a Xeon 8362 (3.6 GHz) as with a Ryzen 9 7950X (5.7 GHz), 1.58 times its clock."""


@dataclass(frozen=True)
class Starts:
    """Seconds of the host in addition to a launch; gap_s is the GPU's.

    operator_s: one eager operator. gradient_s: one with gradients, on average. graph_s: one graph.
    gap_s: between element-wise operators of a graph. launch_s: one launch; None: the platform's
    value (`Device.overhead_s`).
    """

    operator_s: float = 3.75e-6
    gradient_s: float = 15.6e-6
    graph_s: float = 1e-6
    gap_s: float = RATES.element_s
    launch_s: float | None = None


@dataclass(frozen=True)
class Copies:
    """Copies between host and GPU. latency_s: of 8 bytes; the rates are of large copies.

    to_device_bytes_per_s, to_host_bytes_per_s: rates of copies in the two directions.
    """

    latency_s: float
    to_device_bytes_per_s: float
    to_host_bytes_per_s: float


ASSUMED = Starts()
"""Starts of a GPU that was not timed, with a host of HOST_HZ. operator_s: 5.8 us with a launch;
torch's add and relu took 5.9 to 8 (flagos-ai/Torch-FL, pull 27; xlite-dev/LeetCUDA). gradient_s:
17.7 us with a launch for each operator that the records count. This is the middle of two values:
15.4, the same multiple of operator_s as on a CPU; and 20.4, from a loop of SAC by stable-baselines3
after all its other work (333 env steps/s with a gradient step each on a Ryzen 5 9600X of 5.4 GHz;
MyoHub/myosuite, issue 296; two hidden layers, that library's default, are assumed). graph_s:
assumed; a replay costs its host 1.65 us (openfabric-systems/simllm, a100_graph_launch_v1)."""


def figures() -> dict[str, float]:
    """Return figures of a GPU in this host, as `starts_of` reads them: the assumed starts, longer
    by the factor by which this host is slower than REFERENCE; none if this host is not probed."""
    from pearl_estimators.host.probe import REFERENCE, load_probe

    found = load_probe()
    if found is None:
        return {}
    return {
        n: getattr(ASSUMED, n) * getattr(found, n) / getattr(REFERENCE, n)
        for n in ("operator_s", "gradient_s")
    }


def starts_of(device: Device) -> Starts:
    """Return the starts of a GPU that was not timed: its figures `operator_s` and `gradient_s`,
    else ASSUMED on the core of its host, scaled by the probe of this host if the GPU is here, else
    by the figure `host_clock_hz`."""
    slower = (HOST_HZ / device.figures.get("host_clock_hz", HOST_HZ)) ** HOST_POWER
    by_clock = {n: slower * getattr(ASSUMED, n) for n in ("operator_s", "gradient_s")}
    here = figures() if device.real and not device.host else {}
    known = {**by_clock, **here, **device.figures}
    return replace(ASSUMED, **{n: known[n] for n in by_clock})


def launches(kernel: Kernel, variant: str) -> float:
    """Return the operations that a firing starts one by one: the kind's for eager torch, launches
    for other variants."""
    if base_variant(variant) == "eager":
        return kind_of(kernel).operations(kernel)
    written = find_written(kernel).get(variant)
    return written.launches(kernel) if written else 1.0


def start_s(kernel: Kernel, device: Device, variant: str, starts: Starts = ASSUMED) -> float:
    """Return seconds until all of a firing is started, while the GPU has nothing else to do."""
    count = launches(kernel, variant)
    launch_s = device.overhead_s if starts.launch_s is None else starts.launch_s
    if base_variant(variant) == "graph":
        return launch_s + starts.graph_s
    later_s = min(launch_s, LATER_S) if starts.launch_s is None else launch_s
    begin_s = launch_s + (count - 1) * later_s
    if base_variant(variant) == "eager":
        gradient = kind_of(kernel).structure == "gradient"
        begin_s += count * (starts.gradient_s if gradient else starts.operator_s)
    return begin_s


def gpu_roofline(
    kernel: Kernel,
    device: Device,
    variant: str,
    width: int,
    starts: Starts = ASSUMED,
    rates: Rates = RATES,
) -> Estimate:
    """Return the datasheet estimate of a variant on `width` SMs: starts and the queue of operators;
    for hand-written kernels starts + max(flops / rate, bytes / bandwidth)."""
    if base_variant(variant) in ("eager", "graph"):
        return _of_operators(kernel, device, variant, width, starts, rates)
    kind, hz = kind_of(kernel), clock_hz(device)
    rate = device.sustained_flops_per_s * width / device.width
    moved, bandwidth, waits_s = kernel.bytes_in + kernel.bytes_out, device.memory_bytes_per_s, 0.0
    if kind.structure == "environment":
        each = kernel.flops / kernel.dim("envs")
        whole = device.figures.get("float64_flops_per_s", FLOAT64_SHARE * device.peak_flops_per_s)
        rate = whole * width / device.width
        waits_s = CHAIN * each / hz
    elif kind.accesses(kernel):
        waits_s = WAIT_S * kind.accesses(kernel) / lanes_of(kernel)
    elif "horizon" in kernel.dims and kind.structure == "advantages":
        waits_s = WAIT_S * kernel.dim("horizon")
    begin_s = start_s(kernel, device, variant, starts)
    compute_s, memory_s = kernel.flops / rate, moved / bandwidth
    found = of_terms(
        begin_s,
        compute_s,
        memory_s,
        BY_HAND_BAND,
        f"{ROOFLINE}: {launches(kernel, variant):g} launches, variant {variant}, + max(flops / "
        f"rate, bytes / bandwidth) of {device.model or device.name}; band assumed"
        + ("; passes assumed, nobody counted them" if kind.assumed else ""),
        waits_s,
    )
    work = {"arithmetic": compute_s} if compute_s >= memory_s else {"memory": memory_s}
    return replace(found, parts={"starts": begin_s, "waits": waits_s, **work})


def _of_operators(
    kernel: Kernel, device: Device, variant: str, width: int, starts: Starts, rates: Rates
) -> Estimate:
    eager = base_variant(variant) == "eager"
    rates = replace(rates, element_s=starts.gap_s)
    work = queue(kernel, device, width, alone=eager, rates=rates)
    begin_s = start_s(kernel, device, variant, starts)
    exposed_s = begin_s
    if eager:  # all but the first start overlap with the GPU's work
        first_s = begin_s / launches(kernel, variant)
        exposed_s = first_s + max(begin_s - first_s - work.seconds, 0.0)
    latency_s = exposed_s + work.seconds
    started_s = exposed_s + work.start_s
    most = max(started_s, work.compute_s, work.memory_s)
    bound: Bound = "compute" if most == work.compute_s else "memory"
    return Estimate(
        latency_s,
        low_s=latency_s / KERNEL_BAND.below,
        high_s=latency_s * KERNEL_BAND.above,
        rung="datasheet",
        bound_by="overhead" if most == started_s else bound,
        source=f"{ROOFLINE} of {work.operators:g} operators, variant {variant}, on "
        f"{device.model or device.name}: their starts, shortest times, waves and traffic; band of "
        "published times"
        + ("; passes assumed, nobody counted them" if kind_of(kernel).assumed else ""),
        parts={
            "starts": exposed_s,
            "shortest times": work.start_s,
            "arithmetic": work.compute_s,
            "memory": work.memory_s,
        },
    )


def lanes_of(kernel: Kernel) -> int:
    """Return a firing's independent memory accesses: rows of a batch, or environments."""
    return kernel.dim("batch" if "batch" in kernel.dims else "envs")
