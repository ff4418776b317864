"""The energy counter of NVIDIA's GPUs."""

from __future__ import annotations

from typing import Any

from pearl_devices.gpu.nvml import nvml as nvidia_library
from pearl_devices.gpu.nvml import visible_gpus
from pearl_estimators.energy import REFRESHES, Counter

NVML_REFRESH_S = 0.1  # arXiv 2312.02741, section 4; Nvidia documents none


class Nvml:
    """One NVIDIA GPU. `open` returns None and the reason if the GPU counts no energy."""

    source = "nvml"
    shortest_s = REFRESHES * NVML_REFRESH_S
    note = "the counter moves every 0.1 s; A100 and H100 sample a quarter of the time"

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml, self._handle = nvml, handle
        self._first = float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))

    @classmethod
    def open(cls, place: int, nvml: Any) -> tuple[Nvml | None, str]:
        """Open GPU number `place` of those this process may use. nvml: the module `pynvml`."""
        try:
            nvml.nvmlInit()
            visible, _ = visible_gpus(nvml)
            if place >= len(visible):
                return None, f"NVML shows {len(visible)} GPUs, not number {place}"
            return cls(nvml, visible[place].handle), ""
        except nvml.NVMLError as error:
            return None, f"NVML counts no energy of GPU {place} ({error})"

    def joules(self) -> float:
        return (
            float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) - self._first
        ) / 1e3


def nvml(place: int) -> tuple[Counter | None, str]:
    """Return the counter of GPU number `place` of those that this process may use."""
    return Nvml.open(place, nvidia_library())
