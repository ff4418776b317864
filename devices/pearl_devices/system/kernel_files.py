"""What Linux tells of the processor, the memory and the control groups, in `/proc` and `/sys`.

`root` is the folder that has both; tests make one up. A file that is missing, or full of rubbish,
raises no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pearl_devices.system.chip import Chip

ROOT = Path("/")


def read_chip(usable: Sequence[int], root: Path = ROOT) -> Chip:
    """Return the processor and the memory. usable: the CPUs on which this process may run."""
    listing = _text(root / "proc/cpuinfo")  # reading asks each CPU for its clock
    model = re.search(r"^model name\s*:\s*(.+)$", listing, re.MULTILINE)
    features = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", listing, re.MULTILINE)
    cores, cores_source = _cores(root, usable)
    clock_hz, clock_source, is_base = _clock(root, listing)
    memory_bytes, memory_source = _memory(root)
    return Chip(
        model[1].strip() if model else "",
        listing,
        tuple(features[1].split()) if features else (),
        cores,
        cores_source,
        cpu_quota(root),
        clock_hz,
        clock_source,
        is_base,
        _caches(root, usable),
        "/sys/devices/system/cpu/cpu*/cache",
        memory_bytes,
        memory_source,
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


def _cores(root: Path, usable: Sequence[int]) -> tuple[int, str]:
    """Physical cores among the CPUs that this process may use."""
    siblings = {
        _text(root / f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list") or str(i)
        for i in usable
    }
    return max(1, len(siblings)), "cores behind the affinity mask of this process"


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


def cpu_quota(root: Path = ROOT) -> float | None:
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


def _memory(root: Path) -> tuple[float | None, str]:
    """Bytes of the machine's memory, limited by the control groups, and the source."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    total = float(match[1]) * 1024 if match else None
    source = "/proc/meminfo, MemTotal"
    for group in _groups(root, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(group / file)
            if limit is not None and limit > 0 and (total is None or limit < total):
                total, source = limit, f"control group, {file}"
    return total, source


def free_memory(root: Path = ROOT) -> tuple[float | None, float]:
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


def _clock(root: Path, listing: str) -> tuple[float | None, str, bool]:
    """A core's clock in Hz, its source, and whether it is the base clock."""
    khz = _number(root / "sys/devices/system/cpu/cpu0/cpufreq" / "cpuinfo_max_freq")
    if khz:
        return khz * 1e3, "cpufreq, cpuinfo_max_freq", False
    found = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)$", listing, re.MULTILINE)
    if found and max(map(float, found)) > 0:
        return max(map(float, found)) * 1e6, "cpu MHz of /proc/cpuinfo", True
    return None, "assumed", False


def _caches(root: Path, usable: Sequence[int]) -> dict[str, float]:
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


POWERCAP = ROOT / "sys/class/powercap"


def energy_zones(root: Path = POWERCAP) -> dict[Path, float]:
    """Return the zone of each CPU package whose joules are counted (RAPL), and the microjoules at
    which its counter begins again.

    Raises:
        OSError, ValueError: a zone cannot be read.
    """
    zones: dict[Path, float] = {}
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's packages have the same name
        if (zone / "name").read_text(encoding="utf-8").startswith("package"):
            microjoules(zone)
            zones[zone] = float((zone / "max_energy_range_uj").read_text(encoding="utf-8"))
    return zones


def microjoules(zone: Path) -> float:
    """Return the microjoules that a zone has counted."""
    return float((zone / "energy_uj").read_text(encoding="utf-8"))
