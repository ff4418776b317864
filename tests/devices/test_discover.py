"""What a machine has, read from made-up `/proc` and `/sys` trees and from this machine."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_devices import Device, Link, cpu_count, discover
from pearl_devices.base import UnsupportedError
from pearl_devices.cores import core_of
from pearl_devices.gpu import nvidia
from pearl_devices.gpu.nvml import find_gpus
from pearl_devices.system import host_system, kernel_files, linux, part
from pearl_devices.system.chip import Chip

CPUINFO = "model name\t: Test CPU 9000\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu sse2 avx avx2 fma\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def chip_of(root: Path) -> Chip:
    """What the files below `root` say."""
    return kernel_files.read_chip(host_system.usable_cpus(), root)


def cpus(count: int, threads: int) -> dict[str, str]:
    """`count` logical CPUs, `threads` of them a core."""
    return {
        f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": str(i // threads)
        for i in range(count)
    }


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_system, "usable_cpus", lambda: list(range(8)))
    monkeypatch.setattr(host_system, "may_have_gpu", lambda: True)


def test_this_machine_is_a_platform_with_a_real_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cpu = discover.host().device("cpu")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= cpu.width <= (usable or 1)
    assert cpu.real
    assert not cpu.simulated
    assert 0 < cpu.memory_bytes < math.inf
    assert set(cpu.figures) <= set(cpu.sources)


@pytest.mark.usefixtures("cpu_as_it_is")
def test_a_cpu_is_what_its_files_say_and_what_is_assumed_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "has_torch", lambda: True)
    files = {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:       8388608 kB\n"}
    assumed = {
        "memory_bytes_per_s": "assumed: 12.8 GB/s a core; not measured",
        "overhead_s": "assumed: one call of a compiled kernel",
        "idle_power_w": "assumed: 20 W and 1 W a core",
        "active_power_w": "assumed: 20 W and 8 W a core",
    }
    units = "fma: 2 multiply-add units of 256 bits"
    peak = f"assumed: 4 cores · 2.8e+09 Hz · 32 flops per cycle ({units}); not measured"
    found = discover.cpu(chip_of(tree(tmp_path, {**cpus(8, 2), **files})))
    assert found == Device(
        "cpu", "cpu", 4, "cores", 4, 8 * 2.0**30, 4 * 2.8e9 * 32, 4 * 12.8e9, 1e-6, 24.0, 52.0,
        real=True, model="Test CPU 9000",
        figures={"clock_hz": 2.8e9, "flops_per_cycle": 32.0, "bfloat16": 0.0},
        sources={
            "width": "cores behind the affinity mask of this process",
            "max_lanes": "one per core",
            "memory_bytes": "/proc/meminfo, MemTotal",
            "peak_flops_per_s": peak,
            "clock_hz": "assumed: 1.4 x the cpu MHz of /proc/cpuinfo",
            "flops_per_cycle": f"assumed of {units}",
            "bfloat16": "the CPU has no instructions for bfloat16",
            **assumed,
        },
    )  # fmt: skip


@pytest.mark.parametrize(("files", "clock_hz", "source"), [
    ({"proc/cpuinfo": "cpu MHz : 1000.0\ncpu MHz : 2000.0\ncpu MHz : 1500\n"}, 2.8e9, "1.4 x"),
    ({"proc/cpuinfo": "cpu MHz : 0.000\n"}, 2.5e9, "assumed"),
    ({}, 2.5e9, "assumed"),
    (
        {
            "proc/cpuinfo": CPUINFO,
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3500000\n",
        },
        3.5e9,
        "cpufreq, cpuinfo_max_freq",
    ),
])  # fmt: skip
def test_the_clock_is_that_of_one_busy_core(
    tmp_path: Path, files: dict[str, str], clock_hz: float, source: str
) -> None:
    cpu = discover.cpu(chip_of(tree(tmp_path, files)))
    assert cpu.figures["clock_hz"] == clock_hz
    assert source in cpu.sources["clock_hz"]
    assert cpu.width == 8


def test_the_cpus_of_this_process_are_those_of_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {9, 2}}[pid], raising=False)
    assert part("linux").usable_cpus() == [2, 9]
    for count, usable in ((3, [0, 1, 2]), (None, [0])):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert part("portable").usable_cpus() == usable


def listed_parts(*numbers: tuple[int, int]) -> str:
    return "\n".join(
        f"processor\t: {n}\nCPU implementer\t: {implementer:#x}\nCPU architecture: 8\n"
        f"CPU variant\t: 0x0\nCPU part\t: {part:#x}\nCPU revision\t: 1\n"
        for n, (implementer, part) in enumerate(numbers)
    )


def test_of_big_and_small_cores_the_big_one_counts_wherever_it_stands() -> None:
    small, big, middle = (0x41, 0xD03), (0x41, 0xD44), (0x41, 0xD0B)
    assert core_of(listed_parts(small, small, big, middle), ["asimd"]).name == "Cortex-X1"


@pytest.mark.parametrize(("group", "files", "width"), [
    ("0::/a/b", {"a/cpu.max": "250000 100000\n"}, 2),
    ("0::/a", {"a/cpu.max": "50000 100000\n"}, 1),
    ("0::/a", {"a/cpu.max": "max 100000\n"}, 8),
    ("0::/a", {"a/cpu.max": "800000 100000\n"}, 8),
    ("0::/a/b", {"cpu.max": "5 1\n", "a/cpu.max": "2 1\n", "a/b/cpu.max": "3 1\n"}, 2),
    ("0::/../..", {"cpu.max": "300000 100000\n"}, 3),
    ("3:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "4\n", "cpu/x/cpu.cfs_period_us": "1\n"}, 4),
    ("3:cpu,cpuacct:/x",
     {"cpu,cpuacct/x/cpu.cfs_quota_us": "4\n", "cpu,cpuacct/x/cpu.cfs_period_us": "1\n"}, 4),
])  # fmt: skip
def test_a_cpu_quota_bounds_the_width_and_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str], width: int
) -> None:
    groups = {f"sys/fs/cgroup/{name}": quota for name, quota in files.items()}
    root = tree(tmp_path, {**cpus(8, 1), "proc/self/cgroup": f"{group}\n", **groups})
    cpu = discover.cpu(chip_of(root))
    assert cpu.width == cpu.max_lanes == width
    told = "cores behind" if width == 8 else "CPU quota of the control group: "
    assert cpu.sources["width"].startswith(told)
    monkeypatch.setattr(host_system, "cpu_quota", lambda: kernel_files.cpu_quota(root))
    assert cpu_count.usable_cpu_count() == width


@pytest.mark.parametrize(("files", "gibibytes", "source"), [
    ({}, 8, "/proc/meminfo, MemTotal"),
    ({"a/memory.max": "1", "a/b/memory.max": "max"}, 1, "control group, memory.max"),
    ({"a/memory.max": "2", "a/b/memory.max": "1", "memory.max": "3"}, 1, "control group, m"),
    ({"a/memory.max": "8", "memory.max": "0"}, 8, "/proc/meminfo, MemTotal"),
    ({"memory/c/memory.limit_in_bytes": "5"}, 5, "control group, memory.limit_in_bytes"),
])  # fmt: skip
def test_memory_is_the_least_of_machine_and_control_groups(
    tmp_path: Path, files: dict[str, str], gibibytes: int, source: str
) -> None:
    groups = {
        f"sys/fs/cgroup/{name}": n if n == "max" else str(int(n) * 2**30)
        for name, n in files.items()
    }
    whole = {
        "proc/meminfo": "MemTotal:       8388608 kB\n",
        "proc/self/cgroup": "0::/a/b\n5:memory,cpu:/c\n6:pids:/a\n",
    }
    cpu = discover.cpu(chip_of(tree(tmp_path, {**whole, **groups})))
    assert cpu.memory_bytes == gibibytes * 2**30
    assert cpu.sources["memory_bytes"].startswith(source)


def test_caches_are_read_per_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_system, "usable_cpus", lambda: [3, 5])
    base = "sys/devices/system/cpu/cpu3/cache"
    rows = [
        ("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"),
        ("3", "Unified", "1G"), ("4", "Unified", "512"), ("5", "Unified", "2T"),
    ]  # fmt: skip
    files = {}
    for i, row in enumerate(rows):
        for name, content in zip(("level", "type", "size"), row, strict=True):
            files[f"{base}/index{i}/{name}"] = content
    cpu = discover.cpu(chip_of(tree(tmp_path, files)))
    sizes = {"l1d_bytes": 48 * 2**10, "l2_bytes": 2**21, "l3_bytes": 2**30, "l4_bytes": 512}
    assert {n: v for n, v in cpu.figures.items() if n.endswith("bytes")} == sizes
    assert {cpu.sources[n] for n in sizes} == {"/sys/devices/system/cpu/cpu*/cache"}


def test_files_full_of_rubbish_raise_nothing(tmp_path: Path) -> None:
    rubbish = {
        "proc/cpuinfo": "cpu MHz : many\nflags", "proc/meminfo": "MemTotal: lots",
        "proc/self/cgroup": "::::\nnonsense\n0::", "sys/fs/cgroup/cpu.max": "1 0",
        "sys/fs/cgroup/memory.max": "-1", "sys/devices/system/cpu/cpu0/cache/index0/size": "big",
    }  # fmt: skip
    assert discover.cpu(chip_of(tree(tmp_path, rubbish))).width == 8


def test_gpus_are_looked_for_where_the_kernel_drives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "PROC", tmp_path)
    monkeypatch.setattr(linux, "GPU_FILES", ("driver/nvidia", str(tmp_path / "kfd")))
    assert not part("linux").may_have_gpu()
    for file in (tmp_path / "driver" / "nvidia", tmp_path / "kfd"):
        file.mkdir(parents=True)
        assert part("linux").may_have_gpu()
        file.rmdir()
    assert not part("portable").may_have_gpu(), "no CUDA on macOS"


def test_no_gpu_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert find_gpus(1e9) == ([], [])


def test_without_the_package_that_finds_gpus_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"cannot be imported .* pip install nvidia-ml-py$"):
        discover.host()


class Nvml:
    """The part of NVML that `discover` asks, for one RTX 3090; `silent` functions are absent."""

    values = {  # noqa: RUF012
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetUUID": "GPU-1234",
        "nvmlDeviceGetName": "NVIDIA GeForce RTX 3090",
        "nvmlDeviceGetCudaComputeCapability": (8, 6),
        "nvmlDeviceGetNumGpuCores": 10496,
        "nvmlDeviceGetMemoryBusWidth": 384,
        "nvmlDeviceGetPowerManagementDefaultLimit": 350_000,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
    }


def fake_nvml(monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...] = ()) -> None:
    import pynvml

    def missing(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, value in Nvml.values.items():
        monkeypatch.setattr(pynvml, name, missing if name in silent else lambda *_, v=value: v)

    class Memory:
        total = 24 * 2**30

    clocks = {pynvml.NVML_CLOCK_SM: 1695, pynvml.NVML_CLOCK_MEM: 9751}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: Memory)
    ask = missing if "clocks" in silent else lambda _, kind: clocks[kind]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", ask)


def a_gpu(monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...] = ()) -> tuple[Device, Link]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml(monkeypatch, silent)
    ((gpu, link),), notes = find_gpus(1e9)
    assert notes == []
    return gpu, link


CLOCK, LANES = "NVML, nvmlDeviceGetMaxClockInfo", "NVML, nvmlDeviceGetMaxPcieLinkGeneration"
CORES, POWER = "NVML, nvmlDeviceGetNumGpuCores", "NVML, nvmlDeviceGetPowerManagementDefaultLimit"
ASSUMED = {
    "overhead_s": "assumed: one CUDA launch",
    "idle_power_w": "assumed: a tenth of the power limit",
    "context_power_w": "assumed: a fifth of the power limit (arXiv 2605.23918 reads 0.17 to 0.29)",
}


def told(cores: str, clock: str, power: str) -> dict[str, str]:
    """Sources of the figures of the RTX 3090."""
    return {
        "float64_flops_per_s": "CUDA programming guide: 1/64 of float32's",
        "width": f"{cores}, over 128 cores an SM (CUDA programming guide)",
        "max_lanes": "one stream",
        "memory_bytes": "NVML, nvmlDeviceGetMemoryInfo",
        "peak_flops_per_s": f"cores · 2 flops · highest SM clock ({clock})",
        "memory_bytes_per_s": f"bus width · highest memory clock · 2 ({clock})",
        "active_power_w": power, "clock_hz": clock, **ASSUMED,
    }  # fmt: skip


def linked(bytes_per_s: float, source: str) -> Link:
    sources = {
        "latency_s": "assumed: one small copy with its driver call",
        "bytes_per_s": f"PCIe generation and lanes ({source}), line rate",
        "per_message_s": "assumed: one driver call",
    }
    return Link("cpu", "gpu", 10e-6, bytes_per_s, 5e-6, sources=sources, band=(0.5, 3.0))


def test_a_gpu_is_computed_from_its_clocks_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = 2 * 10496 * 1695e6
    wanted = Device(
        "gpu", "gpu", 82, "sm", 1, 24 * 2.0**30, peak, 2 * 9751e6 * 384 / 8, 5e-6, 35.0, 350.0,
        context_power_w=70.0,
        model="NVIDIA GeForce RTX 3090",
        figures={"clock_hz": 1695e6, "float64_flops_per_s": peak / 64},
        sources=told(CORES, CLOCK, POWER),
    )  # fmt: skip
    assert a_gpu(monkeypatch) == (wanted, linked(4 * 16 * 1.969e9 / 4, LANES))
    platform = discover.host()
    assert platform.device("gpu") == wanted
    assert [link.name for link in platform.links] == ["cpu-gpu"]


class Cards:
    """Some of NVML for several cards with parts (MIG). A card is a dict: `name`, `parts` (name of
    a part → SMs and bytes), and `broken`, the questions that it does not answer."""

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = cards

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import pynvml

        def answer(function: str, of: Callable[..., Any]) -> None:
            def ask(handle: Any, *args: Any) -> Any:
                card = self.cards[handle[0]]
                if function in card.get("broken", ()):
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                return of(handle, *args)

            monkeypatch.setattr(pynvml, function, ask)

        def part(handle: Any) -> tuple[int, float]:
            return self.cards[handle[0]]["parts"][handle[1]]

        fake_nvml(monkeypatch)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(self.cards))
        answer("nvmlDeviceGetUUID", lambda h: h[1] or f"GPU-{h[0]}")
        answer("nvmlDeviceGetName", lambda h: self.cards[h[0]].get("name", "H100"))
        answer("nvmlDeviceGetMigMode", lambda h: [int("parts" in self.cards[h[0]])] * 2)
        answer("nvmlDeviceGetMaxMigDeviceCount", lambda h: len(self.cards[h[0]].get("parts", ())))
        answer(
            "nvmlDeviceGetMigDeviceHandleByIndex",
            lambda h, i: (h[0], list(self.cards[h[0]]["parts"])[i]),
        )
        answer(
            "nvmlDeviceGetMemoryInfo",
            lambda h: SimpleNamespace(total=part(h)[1] if h[1] else 80e9),
        )
        answer("nvmlDeviceGetAttributes", lambda h: SimpleNamespace(multiprocessorCount=part(h)[0]))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self.open)

    def open(self, number: int) -> tuple[int, str]:
        import pynvml

        if "open" in self.cards[number].get("broken", ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return number, ""


PARTS = {"MIG-a": (16, 10e9), "MIG-b": (32, 20e9)}


@pytest.mark.parametrize(
    ("visible", "cards", "found", "note"),
    [
        ("MIG-b", [{}, {"parts": PARTS}], [(32, 20e9)], ""),
        ("MIG-b,MIG-a", [{"parts": PARTS}], [(32, 20e9)], ""),
        ("MIG-c", [{"parts": PARTS}], [], "names MIG-c; NVML shows no such part"),
        ("MIG-a", [{}], [], "names MIG-a; NVML shows no such part"),
        (None, [{"parts": PARTS}], [(16, 10e9)], "the first of 2"),
        ("0", [{"parts": PARTS}], [(16, 10e9)], "the first of 2"),
        (None, [{"parts": {}}], [], "left out, because NVML shows no part"),
        (None, [{"broken": ["open"]}, {}], [(82, 80e9)], "GPU 0 is left out"),
        (None, [{"broken": ["nvmlDeviceGetMemoryInfo"]}, {}], [(82, 1e9), (82, 80e9)], ""),
        (None, [{"broken": ["nvmlDeviceGetName", "nvmlDeviceGetUUID"]}], [(82, 80e9)], ""),
        ("1", [{"name": "T4"}, {}], [(82, 80e9)], "set CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        ("1", [{}, {}], [(82, 80e9)], ""),
    ],
)
def test_cards_and_parts_are_found_or_named(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    cards: list[dict[str, Any]],
    found: list[tuple[int, float]],
    note: str,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    Cards(*cards).install(monkeypatch)
    gpus, notes = find_gpus(1e9)
    assert [(gpu.width, gpu.memory_bytes) for gpu, _ in gpus] == found
    assert len(notes) == bool(note)
    assert note in "".join(notes)
    if "nvmlDeviceGetMemoryInfo" in cards[0].get("broken", ()):
        assert gpus[0][0].sources["memory_bytes"].startswith("assumed: the host's memory")


def test_a_part_has_the_share_of_its_sms_and_of_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Cards({"parts": {"MIG-a": (41, 20e9)}}).install(monkeypatch)
    ((part, _),), _ = find_gpus(1e9)
    whole, _ = a_gpu(monkeypatch)
    assert part.peak_flops_per_s == whole.peak_flops_per_s / 2
    assert part.active_power_w == whole.active_power_w / 2
    assert part.memory_bytes_per_s == whole.memory_bytes_per_s / 4


@pytest.mark.parametrize(("variable", "width"), [("1", 1), ("3", 3), ("64", 8), ("two", 8)])
def test_slurm_bounds_the_cores_and_the_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, width: int
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", variable)
    monkeypatch.setattr(host_system, "usable_cpus", lambda: list(range(8)))
    cpu = discover.cpu(chip_of(tree(tmp_path, cpus(8, 1))))
    assert (cpu.width, cpu_count.usable_cpu_count()) == (width, width)
    assert ("SLURM_CPUS_PER_TASK of Slurm" in cpu.sources["width"]) == (width < 8)


def test_a_gpu_is_real_where_torch_drives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ((gpu, _),) = find_gpus(1e9)[0]
    assert not gpu.real  # this torch is built for CPUs
    monkeypatch.setattr(nvidia, "torch_kind", lambda: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    ((gpu, _),) = find_gpus(1e9)[0]
    assert gpu.real
