"""The devices of this machine: its CPU as one device, and its GPUs.

The figures are what the system says (`system`); nothing is timed. `Device.sources` labels guessed
numbers "assumed". A missing file, library or GPU raises no error.
"""

from __future__ import annotations

import math
import os
import platform as python_platform

from pearl_devices import BACKENDS
from pearl_devices.base import Device, Link, Platform
from pearl_devices.compile_target import NAME, target_variables
from pearl_devices.cores import (
    LLVM_NAMES,
    USUAL,
    Core,
    caches_of,
    clock_of,
    core_of,
    core_of_llvm,
    shares_of,
)
from pearl_devices.system import host_system
from pearl_devices.system.chip import Chip
from pearl_devices.torch_threads import has_torch
from pearl_devices.user_imports import import_function

BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
# CPU features with bfloat16 products: x86 as the kernel lists them; Armv8.6.
BOOST = 1.4
"""Clock of a single busy core over the base clock, which /proc/cpuinfo gives in virtual machines.
An EPYC of 2.6 GHz computed products at 3.6 GHz; one of 2.45 GHz boosts to 3.5 GHz. For other CPUs
the ratio is assumed."""
CORE_BYTES_PER_S = 12.8e9  # assumed: half a DDR4-3200 channel per core
CALL_S = 1e-6  # assumed: one call of a compiled kernel from Python with its arguments
CORE_IDLE_W, CORE_ACTIVE_W, BASE_W = 1.0, 8.0, 20.0  # assumed: server CPUs draw 5 to 12 W per core
MEMORY_BYTES = 4.0 * 2**30  # assumed if the system does not say


def host() -> Platform:
    """Return this machine: device `cpu`, then `gpu` (or `gpu0`, `gpu1`, …), each linked to the
    CPU."""
    one = cpu()
    found: list[tuple[Device, Link]] = []
    notes: list[str] = []
    if host_system.may_have_gpu() and "gpu" in BACKENDS:
        found, notes = import_function(f"{BACKENDS['gpu']}:find_here")(one.memory_bytes)
    devices = (one, *(g for g, _ in found))
    if not host_system.PINS:
        notes = [
            *notes,
            f"{host_system.NAME} binds no process to cores, so lanes may move between them",
        ]
    return Platform("host", devices, tuple(link for _, link in found), notes=tuple(notes))


def cpu(chip: Chip | None = None) -> Device:
    """Return the cores and the memory that this process may use, as one device.

    chip: what is known of them; by default, what the system says.
    """
    chip = chip or host_system.chip()
    cores, cores_source = _cores(chip)
    core, features = _core(chip)
    clock_hz, clock_source = _clock(chip, core)
    per_cycle = core.flops_per_cycle
    units = f"{core.name}: {core.units} multiply-add units of {core.vector_bits} bits"
    caches, cache_source = chip.cache_bytes, chip.cache_source
    if not caches:
        caches, cache_source = caches_of(core)
    shares = shares_of(core)
    figures = {"clock_hz": clock_hz, "flops_per_cycle": float(per_cycle), **caches, **shares}
    figures["bfloat16"] = float(not target_variables() and any(f in features for f in BFLOAT16))
    sources = {
        "width": cores_source,
        "max_lanes": "one per core",
        "memory_bytes": chip.memory_source,
        "peak_flops_per_s": (
            f"assumed: {cores} cores · {clock_hz:.4g} Hz · {per_cycle} flops per cycle "
            f"({units}); not measured"
        ),
        "memory_bytes_per_s": "assumed: 12.8 GB/s a core; not measured",
        "overhead_s": "assumed: one call of a compiled kernel",
        "idle_power_w": "assumed: 20 W and 1 W a core",
        "active_power_w": "assumed: 20 W and 8 W a core",
        "clock_hz": clock_source,
        "flops_per_cycle": f"assumed of {units}",
        **dict.fromkeys(shares, f"assumed of {core.name}: llvm-mca of the compiled loops"),
        "bfloat16": f"the CPU has {'' if figures['bfloat16'] else 'no '}instructions for bfloat16",
    }
    if not has_torch():
        figures["torch"], sources["torch"] = 0.0, "torch is not installed"
    return Device(
        "cpu",
        "cpu",
        width=cores,
        width_unit="cores",
        max_lanes=cores,
        memory_bytes=MEMORY_BYTES if chip.memory_bytes is None else chip.memory_bytes,
        peak_flops_per_s=cores * clock_hz * per_cycle,
        memory_bytes_per_s=cores * CORE_BYTES_PER_S,
        overhead_s=CALL_S,
        idle_power_w=BASE_W + cores * CORE_IDLE_W,
        active_power_w=BASE_W + cores * CORE_ACTIVE_W,
        real=True,
        model=_name_model(chip, core),
        figures=figures,
        sources={**dict.fromkeys(figures, cache_source), **sources},
    )


def _name_model(chip: Chip, core: Core) -> str:
    known = chip.model or (core.name if core.name in USUAL else "")
    return known or python_platform.processor() or python_platform.machine()


def _cores(chip: Chip) -> tuple[int, str]:
    """The cores of this process, limited by its CPU quota and by Slurm."""
    quota, name = chip.cpu_quota, "CPU quota of the control group"
    given, variable = slurm_cpus()
    if given is not None and (quota is None or given < quota):
        quota, name = float(given), f"{variable} of Slurm"
    if quota is not None and quota < chip.cores:
        return max(1, math.floor(quota)), f"{name}: {quota:g} CPUs"
    return chip.cores, chip.cores_source


def slurm_cpus() -> tuple[int | None, str]:
    """Return the CPUs that Slurm gave to this task, and the variable that says so. A cluster that
    does not bind tasks to CPUs leaves the affinity mask at all CPUs of the node."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text) > 0:
            return int(text), name
    return None, ""


def _core(chip: Chip) -> tuple[Core, tuple[str, ...]]:
    """The CPU's microarchitecture, and its instruction sets. The core is a narrower one if kernels
    are limited to older instructions. Where the system lists neither, LLVM does."""
    if held := target_variables():
        if named := LLVM_NAMES.get(os.environ.get(NAME, "")):
            return named, chip.features
        from pearl_devices.primitives.math.vectors import LANES

        return Core(f"vectors of {LANES}, as {held} says", 32 * LANES, 2), chip.features
    if chip.features:
        return core_of(chip.listing, list(chip.features)), chip.features
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

    features = tuple(name for name, there in get_host_cpu_features().items() if there)
    return core_of_llvm(get_host_cpu_name(), features), features


def _clock(chip: Chip, core: Core) -> tuple[float, str]:
    """The clock of one busy core in Hz, and its source."""
    if chip.clock_hz is None:
        return clock_of(core)
    if chip.clock_is_base:
        return BOOST * chip.clock_hz, f"assumed: {BOOST:g} x the {chip.clock_source}"
    return chip.clock_hz, chip.clock_source
