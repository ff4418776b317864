"""Energy: counters that are faked through parameters, the model, and what says which it was."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pearl_devices import Device, backend
from pearl_estimators import energy
from pearl_estimators.energy import Energy, EnergyMeter, Rapl, total
from pearl_estimators.gpu import energy as gpu_energy
from tests.processes import HANG_S

CPU = Device("cpu", "cpu", width=4, idle_power_w=20.0, active_power_w=60.0, real=True)
GPU = Device("gpu", "gpu", width=80, width_unit="sm", idle_power_w=50.0, active_power_w=250.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def zone(root: Path, name: str, label: str, microjoules: float, most: float = 1e9) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", label), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{value}\n")
    return folder


class Nvml:
    """What stands for `pynvml`: GPUs that count, or none."""

    class NVMLError(Exception):
        pass

    def __init__(self, millijoules: list[int] | None) -> None:
        self.millijoules = millijoules

    def nvmlInit(self) -> None:
        if self.millijoules is None:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.millijoules or ())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        assert self.millijoules is not None
        return self.millijoules[handle]


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_rapl_adds_packages_and_leaves_out_their_parts(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1e6)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5e6)
    zone(tmp_path, "intel-rapl:0:0", "core", 7e6)
    found, why = Rapl.open(tmp_path)
    assert found is not None, why
    (first / "energy_uj").write_text("3000000")
    (second / "energy_uj").write_text("9000000")
    assert found.joules() == pytest.approx(2 + 4)


def test_rapl_counts_on_after_its_counter_starts_again(tmp_path: Path) -> None:
    one = zone(tmp_path, "intel-rapl:0", "package-0", 9e6, most=1e7)
    found, _ = Rapl.open(tmp_path)
    assert found is not None
    (one / "energy_uj").write_text("500000")
    assert found.joules() == pytest.approx(1.5)
    (one / "energy_uj").write_text("700000")
    assert found.joules() == pytest.approx(1.7)


def meter(root: Path, nvml: Nvml, clock: Clock) -> EnergyMeter:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pearl_estimators.energy.POWERCAP", root)
        patch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[misc]
        made = EnergyMeter.of((CPU, GPU))
    made._clock = clock
    return made


def test_a_counted_energy_says_so_and_a_missing_counter_is_modelled(tmp_path: Path) -> None:
    one, clock = zone(tmp_path, "intel-rapl:0", "package-0", 0), Clock()
    with meter(tmp_path, Nvml(None), clock) as found:
        clock.now = 10.0
        (one / "energy_uj").write_text("123000000")
        cpu, gpu = found.read({"gpu": 0.0})
    assert (cpu.joules, cpu.source) == (pytest.approx(123.0), "rapl")
    assert (gpu.joules, gpu.source) == (pytest.approx(500.0), "modelled")
    assert "Driver Not Loaded" in gpu.note
    assert total((cpu, gpu)) == (pytest.approx(623.0), "modelled+rapl")


def test_nvml_counts_only_windows_that_its_refresh_allows(tmp_path: Path) -> None:
    nvml, clock = Nvml([1000]), Clock()
    with meter(tmp_path, nvml, clock) as found:
        clock.now = 0.5
        assert nvml.millijoules is not None
        nvml.millijoules[0] = 61_000
        short = found.read({})[1]
        clock.now = 3.0
        long = found.read({})[1]
    assert (short.source, long.source) == ("modelled", "nvml")
    assert short.joules == pytest.approx(25.0)
    assert "too short for nvml: 2 s" in short.note
    assert long.joules == pytest.approx(60.0)
    assert long.note.startswith("the counter moves every 0.1 s")


@pytest.mark.parametrize(("seconds", "source"), [(0.02, "rapl"), (0.0199, "modelled")])
def test_rapl_counts_windows_of_20_ms(tmp_path: Path, seconds: float, source: str) -> None:
    one, clock = zone(tmp_path, "intel-rapl:0", "package-0", 0), Clock()
    with meter(tmp_path, Nvml(None), clock) as found:
        (one / "energy_uj").write_text("3000000")
        clock.now = seconds
        cpu, _ = found.read({"cpu": 1e9})
    assert (cpu.source, cpu.seconds) == (source, pytest.approx(seconds))
    assert cpu.joules == pytest.approx(3.0 if source == "rapl" else 60 * seconds)


def test_counters_are_read_all_the_time_and_not_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that starts again twice between two readings would lose a turn."""
    monkeypatch.setattr(energy, "POLL_S", 1e-4)
    read = threading.Semaphore(0)

    class Counter(Rapl):
        def joules(self) -> float:
            read.release()
            return 0.0

    with EnergyMeter((CPU,), {"cpu": Counter({})}) as found:
        for _ in range(3):
            assert read.acquire(timeout=HANG_S)
    assert found._poller is not None
    assert not found._poller.is_alive()
    with EnergyMeter((CPU,), {}) as found:
        assert found._poller is None


def test_only_visible_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    nvml, clock = Nvml([0, 1000]), Clock()
    with meter(tmp_path, nvml, clock) as found:
        clock.now = 4.0
        nvml.millijoules = [99_000, 3000]
        assert found.read({})[1].joules == pytest.approx(2.0)
    counter, why = gpu_energy.Nvml.open(1, nvml)
    assert (counter, why) == (None, "NVML shows 1 GPUs, not number 1")


def test_the_second_device_of_a_kind_has_the_second_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    monkeypatch.setattr(backend("gpu"), "COUNTER", lambda n: (opened.append(n), f"no {n}"))
    cpus = [replace(CPU, name=f"null{n}", kind="null") for n in (0, 1)]
    made = EnergyMeter.of((cpus[0], GPU, cpus[1], replace(GPU, name="other")))
    assert opened == [0, 1]
    assert made._absent == {
        "null0": "a device of kind null has no counter", "gpu": "no 0",
        "null1": "a device of kind null has no counter", "other": "no 1",
    }  # fmt: skip


def test_the_model_is_idle_power_and_the_share_of_width_that_was_busy(tmp_path: Path) -> None:
    clock = Clock()
    with EnergyMeter((CPU,), {}, {"cpu": "none here"}, clock) as found:
        clock.now = 10.0
        assert found.read({"cpu": 5.0})[0].joules == pytest.approx(20 * 10 + 40 / 4 * 5)
        assert found.read({"cpu": 1e9})[0].joules == pytest.approx(60 * 10)
        assert found.read({})[0] == Energy("cpu", 200.0, "modelled", 10.0, "none here")


def test_an_unreadable_counter_is_no_counter_and_says_why(tmp_path: Path) -> None:
    (zone(tmp_path, "intel-rapl:0", "package-0", 0) / "energy_uj").write_text("")
    found, why = Rapl.open(tmp_path)
    assert found is None
    assert "RAPL cannot be read" in why
    assert "no RAPL package" in Rapl.open(tmp_path / "absent")[1]
