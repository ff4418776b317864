"""Times of the simulated FPGA: cycles of engines in Verilog, and of PEARL's released design.

The cycles of a learner are those of its program (`pearl_devices.fpga.learner`); the cycles of the
sum tree are a closed form. Both equal the simulation of the register-transfer code exactly. Three
figures that no simulation gives are assumed: the clock, the doorbell, and DDR memory at its full
bandwidth. The band is that of the clock. Published float32 designs reach 152 to 340 MHz (FAQ, a
Q-learning accelerator after place and route, github.com/ce-uos/faq-qlearning-accelerator; arrays on
Stratix 10 "close to and above 300 MHz", highpermeshes.github.io, 2019), which is 0.8 to 1.5 times
the time at 250 MHz. The other design, `released`, is in `fpga_released`.
"""

from __future__ import annotations

from pearl_devices import Device, FigureError, Kernel
from pearl_devices.fpga import is_released, learner_of
from pearl_devices.fpga.program import CYCLES_PER_LEVEL, draw_cycles, set_cycles
from pearl_devices.fpga.resources import figure, released_tree_width, tree_engine
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.replay import is_prioritised, row_bytes
from pearl_estimators import fpga_released
from pearl_estimators.estimates import Bound, Estimate

BELOW, ABOVE = 0.2, 0.5  # of the clock, see above
DDR_LATENCY_S = 100e-9  # assumed if the platform has no ddr_latency_s
DDR_BURST_BYTES = 64  # DDR4: 8 beats of 64 bits


def _learner_times(
    kernel: Kernel, device: Device, variant: str, width: int
) -> tuple[float, float, float]:
    """Batch rows stream into the engine one per cycle, or at the rate of the DDR memory; no other
    work of the step overlaps with them."""
    clock, ddr = figure(device, "clock_hz"), device.memory_bytes_per_s
    engine = learner_of(kernel, device, variant, width)
    steps = kernel.dims.get("steps", 1)
    assert isinstance(steps, int)
    work = (engine.cycles - engine.beats) / clock
    if kind_of(kernel).structure != "gradient":  # the host writes the observations into the engine
        return work + engine.beats / clock, 0.0, 0.0
    moved = engine.batch * _sample_bytes(kernel)
    moved += engine.rows_again * 4 * (kernel.dim("obs") + kernel.dim("act"))
    stream = max(engine.beats / clock, moved / ddr)
    return steps * (work + stream), 0.0, device.figures.get("ddr_latency_s", DDR_LATENCY_S)


def _times(kernel: Kernel, device: Device, variant: str, width: int) -> tuple[float, float, float]:
    """Return (compute, memory, fixed) seconds of one firing, without the doorbell.

    Compute and memory overlap; fixed overlaps with neither: DDR latency and the depth of the tree.
    """
    clock, ddr = figure(device, "clock_hz"), device.memory_bytes_per_s
    latency = device.figures.get("ddr_latency_s", DDR_LATENCY_S)
    structure = kind_of(kernel).structure
    if structure == "copy":
        return 0.0, kernel.bytes_in / ddr, latency
    if is_released(device):
        return fpga_released.times(kernel, width, clock, ddr)
    if structure in ("network", "gradient"):
        return _learner_times(kernel, device, variant, width)
    inserts = structure == "insert"
    requests = kernel.dim("envs") if inserts else kernel.dim("batch") * kernel.dim("steps")
    moved = 0.0
    if structure != "prioritise":  # whole rows, each in its own bursts
        moved = requests * (-(-row_bytes(kernel) // DDR_BURST_BYTES) * DDR_BURST_BYTES)
    if structure == "sample":  # reward and flags of the rows of an n-step return
        moved += requests * (kernel.dim("n_step") - 1) * DDR_BURST_BYTES
    if not is_prioritised(kernel):
        return requests / clock, moved / ddr, latency
    draws = structure == "sample"
    depth = tree_engine(kernel, device).depth
    cycles = draw_cycles(depth, requests) if draws else set_cycles(depth, requests)
    busy = requests if draws else CYCLES_PER_LEVEL * requests
    return busy / clock, moved / ddr, latency + (cycles - busy) / clock


def _sample_bytes(kernel: Kernel) -> int:
    """Bytes of one sample: observations, reward, discount and weight in float32, action."""
    return 4 * (2 * kernel.dim("obs") + 3) + (4 * kernel.dim("act") or 8)


def closed_form(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Return the closed-form estimate. Latency = doorbell + fixed + max(compute, memory).

    Occupancy = max(compute, memory): the next firing may enter while this one's doorbell rings or
    its pipeline drains. `width` counts multiply-add units (DSP blocks).

    Raises:
        FigureError: no engine has this variant and width, or a figure is missing.
    """
    if variant == "tree" and width < released_tree_width(kernel):
        raise FigureError(
            f"kernel {kernel.kind} on {device.name!r}: {variant} needs at least "
            f"{released_tree_width(kernel)} pe, given {width}"
        )
    compute, memory, fixed = _times(kernel, device, variant, width)
    engine = variant
    if variant == "integer-tree":
        engine += f" of fan-out {tree_engine(kernel, device).fanout}"
    return _estimate(device, compute, memory, fixed, engine)


def _estimate(device: Device, compute: float, memory: float, fixed: float, engine: str) -> Estimate:
    start, mhz = device.overhead_s, figure(device, "clock_hz") / 1e6
    latency = start + fixed + max(compute, memory)
    bound: Bound = "compute" if compute >= memory else "memory"
    if start + fixed > max(compute, memory):
        bound = "overhead"
    return Estimate(
        latency,
        occupancy_s=min(max(compute, memory), latency),
        low_s=latency * (1 - BELOW),
        high_s=latency * (1 + ABOVE),
        rung="closed_form",
        bound_by=bound,
        source=f"{_origin(device)}: {engine} at {mhz:g} MHz, {_assumed(device)}",
    )


def _origin(device: Device) -> str:
    if is_released(device):
        return "closed form of PEARL's released design (HeteroRL), not built here"
    return "cycles of an engine in Verilog, equal to its simulation"


def _assumed(device: Device) -> str:
    return "cycles and clock assumed" if is_released(device) else "clock assumed"
