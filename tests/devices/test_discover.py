"""What a machine has, read from made-up `/proc` and `/sys` trees and from this machine."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pearl_devices import cpu_count, discover
from pearl_devices.base import UnsupportedError
from pearl_devices.gpu import nvidia, torch_gpus

CPUINFO = "model name\t: Test CPU 9000\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu sse2 avx avx2 fma\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def cpus(count: int, threads: int) -> dict[str, str]:
    """`count` logical CPUs, `threads` of them a core."""
    return {
        f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": str(i // threads)
        for i in range(count)
    }


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "usable_cpus", lambda: list(range(8)))


def test_this_machine_is_a_platform_with_a_real_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cpu = discover.host().device("cpu")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= cpu.width <= (usable or 1)
    assert cpu.real
    assert not cpu.simulated
    assert 0 < cpu.memory_bytes < math.inf
    assert set(cpu.figures) <= set(cpu.sources)


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    assert discover.cpu(tree(tmp_path, cpus(8, 2))).width == 4


def test_peak_is_cores_times_clock_times_the_width_of_the_vectors(tmp_path: Path) -> None:
    cpu = discover.cpu(tree(tmp_path, {**cpus(8, 1), "proc/cpuinfo": CPUINFO}))
    assert cpu.model == "Test CPU 9000"
    assert cpu.peak_flops_per_s == 8 * discover.BOOST * 2e9 * 32
    assert cpu.sources["peak_flops_per_s"].startswith("assumed")


@pytest.mark.parametrize(
    ("core", "flops"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n", 32),  # Zen 3
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", 32),  # Zen 4
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", 64),  # Zen 5
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\n", 64),  # Ice Lake
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 140\n", 32),  # Tiger Lake
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", 32),  # Neoverse V2
    ],
)
@pytest.mark.usefixtures("cpu_as_it_is")
def test_flops_a_cycle_are_those_of_the_microarchitecture_not_of_the_instructions(
    tmp_path: Path, core: str, flops: int
) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": f"{core}flags\t: avx512f avx2 fma\n"})
    assert discover.cpu(root).figures["flops_per_cycle"] == flops


@pytest.mark.parametrize(
    ("flags", "flops"),
    [("avx512f avx2 fma", 64), ("avx2 fma", 32), ("avx sse2", 16), ("sse2", 8), ("asimd", 16)],
)
@pytest.mark.usefixtures("cpu_as_it_is")
def test_wider_vectors_give_more_flops_a_cycle(tmp_path: Path, flags: str, flops: int) -> None:
    key = "Features" if flags == "asimd" else "flags"
    root = tree(tmp_path, {"proc/cpuinfo": f"{key}\t: {flags}\n"})
    assert discover.cpu(root).figures["flops_per_cycle"] == flops


@pytest.mark.parametrize(
    ("files", "width"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
)
def test_a_cpu_quota_bounds_the_width(tmp_path: Path, files: dict[str, str], width: int) -> None:
    cpu = discover.cpu(tree(tmp_path, {**cpus(8, 1), **files}))
    assert cpu.width == cpu.max_lanes == width


def test_memory_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal:       8388608 kB\n", "proc/self/cgroup": "0::/a/b\n"}
    assert discover.cpu(tree(tmp_path, files)).memory_bytes == 8 * 2**30
    files |= {"sys/fs/cgroup/a/memory.max": str(2**30), "sys/fs/cgroup/a/b/memory.max": "max"}
    cpu = discover.cpu(tree(tmp_path, files))
    assert cpu.memory_bytes == 2**30
    assert "control group" in cpu.sources["memory_bytes"]


def test_caches_are_read_per_level(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu/cpu0/cache"
    rows = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    files = {}
    for i, row in enumerate(rows):
        for name, content in zip(("level", "type", "size"), row, strict=True):
            files[f"{base}/index{i}/{name}"] = content
    figures = discover.cpu(tree(tmp_path, files)).figures
    assert figures["l1d_bytes"] == 48 * 1024
    assert figures["l2_bytes"] == 2 * 2**20
    assert "l1_bytes" not in figures


def test_an_empty_tree_still_gives_a_cpu_with_everything_assumed(tmp_path: Path) -> None:
    cpu = discover.cpu(tmp_path)
    assert cpu.width == 8
    assert cpu.sources["clock_hz"] == "assumed"
    assert cpu.peak_flops_per_s > 0


def test_files_full_of_rubbish_raise_nothing(tmp_path: Path) -> None:
    rubbish = {
        "proc/cpuinfo": "cpu MHz : many\nflags",
        "proc/meminfo": "MemTotal: lots",
        "proc/self/cgroup": "::::\nnonsense\n0::",
        "sys/fs/cgroup/cpu.max": "1 0",
        "sys/fs/cgroup/memory.max": "-1",
        "sys/devices/system/cpu/cpu0/cache/index0/size": "big",
    }
    assert discover.cpu(tree(tmp_path, rubbish)).width == 8


def test_no_gpu_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert list(discover.gpus()) == []


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
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", lambda _, kind: clocks[kind])


def test_a_gpu_is_computed_from_its_clocks_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml(monkeypatch)
    platform = discover.host()
    gpu = platform.device("gpu")
    assert (gpu.width, gpu.width_unit) == (82, "sm")
    assert gpu.peak_flops_per_s == pytest.approx(35.58e12, rel=1e-3)
    assert gpu.memory_bytes_per_s == pytest.approx(936e9, rel=1e-3)
    assert gpu.active_power_w == 350
    assert gpu.figures["clock_hz"] == 1.695e9
    assert platform.route("cpu", "gpu")[0].bytes_per_s == pytest.approx(31.5e9, rel=1e-3)


@pytest.mark.parametrize(
    ("capability", "cores"),
    [((6, 0), 64), ((6, 1), 128), ((7, 0), 64), ((7, 2), 64), ((7, 5), 64), ((8, 0), 64)],
)
def test_the_sms_of_a_gpu_are_counted_by_its_compute_capability(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], cores: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(Nvml.values, "nvmlDeviceGetCudaComputeCapability", capability)
    fake_nvml(monkeypatch)
    ((gpu, _),) = list(discover.gpus())
    assert gpu.width == 10496 // cores


def test_what_a_gpu_does_not_say_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml(monkeypatch, silent=("nvmlDeviceGetPowerManagementDefaultLimit",))
    ((gpu, _),) = list(discover.gpus())
    assert gpu.sources["active_power_w"].startswith("assumed")


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("GPU-12", 1), ("", 0), ("-1", 0), ("1", 0), ("GPU-9", 0)]
)
def test_hidden_gpus_are_not_found(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    fake_nvml(monkeypatch)
    assert len(list(discover.gpus())) == count


def test_a_gpu_is_real_where_torch_drives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ((gpu, _),) = list(discover.gpus())
    assert not gpu.real  # this torch is built for CPUs
    monkeypatch.setattr(nvidia, "torch_kind", lambda: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    ((gpu, _),) = list(discover.gpus())
    assert gpu.real


def test_a_gpu_that_torch_alone_knows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(torch_gpus.torch_gpus("cpu", "gpu")) == []
    told = SimpleNamespace(name="AMD Instinct MI300X", total_memory=2**37)
    told.multi_processor_count = 304
    monkeypatch.setattr(torch_gpus, "version", lambda name: "2.6.0+rocm6.2")
    monkeypatch.setattr(torch_gpus, "torch_kind", lambda: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: told)
    seen = [device for device, _ in torch_gpus.torch_gpus("cpu", "gpu")]
    assert [(d.name, d.model, d.width) for d in seen] == [
        (f"gpu{i}", "AMD Instinct MI300X", 304) for i in (0, 1)
    ]
    assert all(d.real and d.sources["peak_flops_per_s"].startswith("assumed") for d in seen)


def test_threads_are_those_of_the_affinity_mask_within_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(discover, "usable_cpus", lambda: [3, 5, 6])
    monkeypatch.setattr(cpu_count, "usable_cpus", discover.usable_cpus)
    assert cpu_count.usable_cpu_count(tmp_path) == 3
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    for quota, threads in (("250000 100000", 2), ("50000 100000", 1), ("max 100000", 3)):
        (group / "cpu.max").write_text(quota)
        assert cpu_count.usable_cpu_count(tmp_path) == threads
