"""The devices of this machine: its CPU as one device, and its GPUs.

Figures come from files of the Linux kernel or from `os`; nothing is timed. `Device.sources` labels
guessed numbers "assumed". A missing file, library or GPU raises no error.
"""

from __future__ import annotations

import math
import os
import platform as python_platform
import re
from collections.abc import Iterator
from pathlib import Path

from pearl_devices.base import Device, Platform
from pearl_devices.compile_target import target_variables
from pearl_devices.cores import Core, core_of
from pearl_devices.torch_threads import has_torch

ROOT = Path("/")

BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
# CPU features with bfloat16 products: x86 as the kernel lists them; Armv8.6.
CLOCK_HZ = 2.5e9  # assumed if neither cpufreq nor /proc/cpuinfo gives it
BOOST = 1.4
"""Clock of a single busy core over the clock in /proc/cpuinfo, which is the base clock in virtual
machines. An EPYC of 2.6 GHz computed products at 3.6 GHz; one of 2.45 GHz boosts to 3.5 GHz. For
other CPUs the ratio is assumed."""
CORE_BYTES_PER_S = 12.8e9  # assumed: half a DDR4-3200 channel per core
CALL_S = 1e-6  # assumed: one call of a compiled kernel from Python with its arguments
CORE_IDLE_W, CORE_ACTIVE_W, BASE_W = 1.0, 8.0, 20.0  # assumed: server CPUs draw 5 to 12 W per core


def host(root: Path = ROOT) -> Platform:
    """Return this machine: device `cpu`, then `gpu` (or `gpu0`, `gpu1`, …), each linked to the CPU.

    root: the folder that contains `/proc` and `/sys`, for tests.
    """
    from pearl_devices.gpu.nvml import find_gpus
    from pearl_devices.gpu.torch_gpus import torch_gpus

    found, notes = find_gpus(_memory(root)[0])
    found = found or list(torch_gpus("cpu", "gpu"))
    devices = (cpu(root), *(g for g, _ in found))
    return Platform("host", devices, tuple(link for _, link in found), notes=tuple(notes))


def cpu(root: Path = ROOT) -> Device:
    """Return the cores and the memory that this process may use, as one device."""
    usable = usable_cpus()
    cores, cores_source = _cores(root, usable)
    listing = _text(root / "proc/cpuinfo")  # reading asks each CPU for its clock
    flags = _flags(listing)
    clock_hz, clock_source = _clock(root, listing)
    core = _core(listing, flags)
    per_cycle = core.flops_per_cycle
    units = f"{core.name}: {core.units} multiply-add units of {core.vector_bits} bits"
    memory, memory_source = _memory(root)
    figures = {"clock_hz": clock_hz, "flops_per_cycle": float(per_cycle), **_caches(root, usable)}
    figures["bfloat16"] = float(not target_variables() and any(f in flags for f in BFLOAT16))
    sources = {
        "width": cores_source,
        "max_lanes": "one per core",
        "memory_bytes": memory_source,
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
        "bfloat16": f"the CPU has {'' if figures['bfloat16'] else 'no '}instructions for bfloat16",
    }
    if not has_torch():
        figures["torch"], sources["torch"] = 0.0, "torch is not installed"
    cache_source = "/sys/devices/system/cpu/cpu*/cache"
    return Device(
        "cpu",
        "cpu",
        width=cores,
        width_unit="cores",
        max_lanes=cores,
        memory_bytes=memory,
        peak_flops_per_s=cores * clock_hz * per_cycle,
        memory_bytes_per_s=cores * CORE_BYTES_PER_S,
        overhead_s=CALL_S,
        idle_power_w=BASE_W + cores * CORE_IDLE_W,
        active_power_w=BASE_W + cores * CORE_ACTIVE_W,
        real=True,
        model=_cpu_model(listing),
        figures=figures,
        sources={**dict.fromkeys(figures, cache_source), **sources},
    )


def _text(path: Path) -> str:
    """The file's text, or nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None


def usable_cpus() -> list[int]:
    """The CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _cores(root: Path, usable: list[int]) -> tuple[int, str]:
    """Physical cores among the CPUs that this process may use, limited by its CPU quota."""
    siblings = {
        _text(root / f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list") or str(i)
        for i in usable
    }
    cores, source = len(siblings), "cores behind the affinity mask of this process"
    quota, name = cpu_quota(root), "CPU quota of the control group"
    given, variable = slurm_cpus()
    if given is not None and (quota is None or given < quota):
        quota, name = float(given), f"{variable} of Slurm"
    if quota is not None and quota < cores:
        return max(1, math.floor(quota)), f"{name}: {quota:g} CPUs"
    return max(1, cores), source


def slurm_cpus() -> tuple[int | None, str]:
    """Return the CPUs that Slurm gave to this task, and the variable that says so. A cluster that
    does not bind tasks to CPUs leaves the affinity mask at all CPUs of the node."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text) > 0:
            return int(text), name
    return None, ""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Control group folders of this process for a controller, innermost first (v2 and v1)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or (parts[1] and controller not in parts[1].split(",")):
            continue
        top = root / "sys/fs/cgroup" / (controller if parts[1] else "")
        if parts[1] and not top.is_dir():  # mounted by its whole name, such as cpu,cpuacct
            top = root / "sys/fs/cgroup" / parts[1]
        group = top / parts[2].lstrip("/")
        while group != top and top in group.parents:
            yield group
            group = group.parent
        yield top


def cpu_quota(root: Path) -> float | None:
    """The CPU time quota of the control groups, in CPUs, or None."""
    limits = []
    for group in _groups(root, "cpu"):
        words = _text(group / "cpu.max").split()
        if len(words) == 2 and all(w.isdigit() for w in words) and int(words[1]) > 0:
            limits.append(int(words[0]) / int(words[1]))
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
    return min(limits) if limits else None


def _memory(root: Path) -> tuple[float, str]:
    """Bytes of the machine's memory, limited by the control groups, and the source."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if match:
        total, source = float(match[1]) * 1024, "/proc/meminfo, MemTotal"
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        source = "sysconf"
    else:
        total, source = 4.0 * 2**30, "assumed"
    for group in _groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(group / file)
            if limit is not None and 0 < limit < total:
                total, source = limit, f"control group, {file}"
    return total, source


def free_memory(root: Path = Path("/")) -> tuple[float | None, float]:
    """Return bytes of memory that this process may still take, within its control groups' limits
    (None if the system does not say), and bytes of free swap."""
    text = _text(root / "proc/meminfo")

    def given(name: str) -> float | None:
        match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        return float(match[1]) * 1024 if match else None

    free = given("MemAvailable")
    for group in _groups(root, "memory"):
        for most, taken in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(group / most), _number(group / taken)
            if limit is not None and used is not None:
                # The kernel can reclaim cached pages of files that were not used lately.
                cached = re.search(r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.M)
                left = max(0.0, limit - used + (float(cached[1]) if cached else 0.0))
                free = left if free is None else min(free, left)
    return free, given("SwapFree") or 0.0


def _cpu_model(listing: str) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", listing, re.MULTILINE)
    return match[1].strip() if match else python_platform.processor() or python_platform.machine()


def _flags(listing: str) -> list[str]:
    """The CPU's features, as the kernel lists them in /proc/cpuinfo."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", listing, re.MULTILINE)
    return found[1].split() if found else []


def _core(listing: str, flags: list[str]) -> Core:
    """The CPU's microarchitecture; a narrower core if kernels are limited to older instructions."""
    if held := target_variables():
        from pearl_devices.primitives.math.vectors import LANES

        return Core(f"vectors of {LANES}, as {held} says", 32 * LANES, 2)
    if not flags and python_platform.machine() in ("arm64", "aarch64"):
        flags = ["asimd"]
    return core_of(listing, flags)


def _clock(root: Path, listing: str) -> tuple[float, str]:
    """The clock of one busy core in Hz, and its source."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    khz = _number(folder / "cpuinfo_max_freq")
    if khz:
        return khz * 1e3, "cpufreq, cpuinfo_max_freq"
    found = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)$", listing, re.MULTILINE)
    if found and max(map(float, found)) > 0:
        boost_hz = BOOST * max(map(float, found)) * 1e6
        return boost_hz, f"assumed: {BOOST:g} x the cpu MHz of /proc/cpuinfo"
    return CLOCK_HZ, "assumed"


def _caches(root: Path, usable: list[int]) -> dict[str, float]:
    """Bytes of one data cache per level, as seen by the first usable CPU."""
    sizes: dict[str, float] = {}
    folder = root / f"sys/devices/system/cpu/cpu{usable[0] if usable else 0}/cache"
    for index in sorted(folder.glob("index*")):
        match = re.fullmatch(r"(\d+)([KMG]?)", _text(index / "size"))
        level, kind = _text(index / "level"), _text(index / "type")
        if match and kind in ("Data", "Unified"):
            unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
            sizes[f"l{level}{'d' if kind == 'Data' else ''}_bytes"] = float(match[1]) * unit
    return sizes
