"""NVIDIA's GPUs of this machine, as NVML tells them.

Counts and clocks come from NVML; peak and bandwidth are computed from them. A GPU, or a part of one
(MIG), that cannot be described is left out, and a note says why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from pearl_devices.base import (
    GPU_IDLE_SHARE,
    LAUNCH_S,
    PCIE_LATENCY_S,
    UNTIMED,
    Device,
    Link,
    UnsupportedError,
)

# Of the power limit, with a context: 0.17 (H100) to 0.29 (L40S; arXiv 2605.23918).
GPU_CONTEXT_SHARE = 0.2
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# PCI-SIG base specifications: transfer rate times line coding, per lane and direction.
CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
# CUDA programming guide, arithmetic per compute capability; 128 for all others since 6.1.
HALF_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
# The same table: float64 at half the rate of float32; 1/64 and 1/32 for all others.

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED = 12, 9
"""NVML_ERROR_LIBRARY_NOT_FOUND and NVML_ERROR_DRIVER_NOT_LOADED: this machine has no driver."""

CAPABILITY = (8, 0)
"""Compute capability of a GPU that does not tell one (assumed)."""


@dataclass(frozen=True)
class Visible:
    """A GPU that this process may use.

    number: NVML's index of the card.
    handle: NVML's handle of the card.
    part: NVML's handle of the part of the card (MIG) that CUDA gives to the process; None: all.
    """

    number: int
    handle: object
    part: object | None = None


def find_gpus(host_bytes: float) -> tuple[list[tuple[Device, Link]], list[str]]:
    """Return the NVIDIA GPUs that this process may use, each with its link to the CPU, and one note
    for each that is left out.

    `real` says whether torch drives a GPU; plans may use others too, and training on those is
    emulated.

    host_bytes: the memory of the host, that of a GPU that tells none because it shares it.

    Raises:
        UnsupportedError: as for `nvml`.
    """
    pynvml = nvml()
    from pearl_devices.gpu.torch_gpus import is_driven

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
            return [], []
        return [], [f"no GPU is listed: NVML does not start ({error})"]
    try:
        visible, notes = visible_gpus(pynvml)
        found = []
        for i, gpu in enumerate(visible):
            name = "gpu" if len(visible) == 1 else f"gpu{i}"
            try:
                device, link = _described(pynvml, gpu, name, host_bytes)
            except pynvml.NVMLError as error:
                notes.append(f"GPU {gpu.number} is left out: NVML does not describe it ({error})")
                continue
            found.append((replace(device, real=is_driven(i)), link))
        return found, notes
    finally:
        pynvml.nvmlShutdown()


def nvml() -> Any:
    """Return the module that queries NVIDIA's driver, `pynvml`.

    Raises:
        UnsupportedError: it cannot be imported, so whether there are GPUs is unknown.
    """
    try:
        return import_module("pynvml")
    except ImportError as error:
        raise UnsupportedError(
            f"the package nvidia-ml-py, which finds GPUs, cannot be imported ({error}); install "
            "it: pip install nvidia-ml-py"
        ) from None


def visible_gpus(nvml: Any) -> tuple[list[Visible], list[str]]:
    """Return the GPUs that this process may use, in the order of the bus, and a note for each that
    is left out or may be another one than CUDA takes.

    nvml: `pynvml`, initialised.
    """
    notes: list[str] = []
    cards = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(Visible(number, nvml.nvmlDeviceGetHandleByIndex(number)))
        except nvml.NVMLError as error:
            notes.append(f"GPU {number} is left out: NVML does not open it ({error})")
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = None if allowed is None else [word.strip() for word in allowed.split(",")]
    named_parts = [w for w in words or () if w.startswith("MIG-")]
    visible: list[Visible] = []
    for card in cards:
        if named_parts:  # CUDA then takes the first of them alone
            parts = [p for p in _parts(nvml, card) if _uuid(nvml, p) == named_parts[0]]
            visible += [replace(card, part=p) for p in parts]
        elif words is None or _is_named(card.number, _uuid(nvml, card.handle), words):
            visible.append(card)
    if named_parts and not visible:
        notes.append(
            f"CUDA_VISIBLE_DEVICES names {named_parts[0]}; NVML shows no such part of a GPU (MIG), "
            "so no GPU is listed"
        )
    whole = [v for v in visible if v.part is not None or not _is_divided(nvml, v.handle)]
    for card in (v for v in visible if v not in whole):
        parts = _parts(nvml, card)
        what = f"GPU {card.number} is divided (MIG), and CUDA gives a process one part of it"
        if not parts:
            notes.append(f"{what}: the GPU is left out, because NVML shows no part")
        elif not any(v.part is not None for v in whole):
            notes.append(f"{what}: the first of {len(parts)}; CUDA_VISIBLE_DEVICES chooses another")
            whole.append(replace(card, part=parts[0]))
        else:
            notes.append(f"{what}: this one is left out, because another part is used")
    by_number = words is not None and any(w.isdecimal() for w in words)
    counted_by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    models = {_text(_asked(nvml, "nvmlDeviceGetName", card.handle)) for card in cards}
    if by_number and len(models) > 1 and not counted_by_bus:
        notes.append(
            "CUDA_VISIBLE_DEVICES has numbers, and the GPUs of this machine differ: CUDA counts "
            "the fastest first, this list counts by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID so that "
            "both count alike"
        )
    return sorted(whole, key=lambda v: v.number), notes


def _is_named(number: int, uuid: str, words: list[str]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names a card."""
    return any(w == str(number) or (w.startswith("GPU-") and uuid.startswith(w)) for w in words)


def _asked(nvml: Any, function: str, *args: object) -> Any:
    """Return what NVML answers; None if this GPU, driver or library does not know the question."""
    try:
        return getattr(nvml, function)(*args)
    except (nvml.NVMLError, AttributeError, TypeError):
        return None


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _uuid(nvml: Any, handle: object) -> str:
    return _text(_asked(nvml, "nvmlDeviceGetUUID", handle))


def _is_divided(nvml: Any, handle: object) -> bool:
    """Return whether MIG is on: CUDA then gives a process a part of the card, never the card."""
    mode = _asked(nvml, "nvmlDeviceGetMigMode", handle)
    return bool(mode and mode[0])


def _parts(nvml: Any, card: Visible) -> list[object]:
    """Return the handles of the parts (MIG) of a card."""
    most = _asked(nvml, "nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0
    found = (
        _asked(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, i) for i in range(most)
    )
    return [part for part in found if part is not None]


def _described(pynvml: Any, gpu: Visible, name: str, host_bytes: float) -> tuple[Device, Link]:
    """Return a GPU as a device, with its link to the CPU.

    Raises:
        NVMLError: the driver cannot reach the card.
    """
    handle = gpu.handle

    def ask(function: str, *args: object, otherwise: float) -> tuple[float, str]:
        """The value that NVML reports, or `otherwise` if this GPU or driver reports none."""
        value = _asked(pynvml, function, handle, *args)
        if value is None:
            return otherwise, "assumed; NVML gives no value"
        return float(value), f"NVML, {function}"

    told = _asked(pynvml, "nvmlDeviceGetCudaComputeCapability", handle)
    capability = tuple(told or CAPABILITY)
    cores, cores_source = ask("nvmlDeviceGetNumGpuCores", otherwise=5120)
    per_sm, halved = CORES_PER_SM.get(capability, 128), capability in HALF_FLOAT64
    clock, clock_source = ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM, otherwise=1400)
    bus, _ = ask("nvmlDeviceGetMemoryBusWidth", otherwise=256)
    memory_clock, memory_source = ask(
        "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM, otherwise=5000
    )
    limit, limit_source = ask("nvmlDeviceGetPowerManagementDefaultLimit", otherwise=250_000)
    generation, link_source = ask("nvmlDeviceGetMaxPcieLinkGeneration", otherwise=3)
    lanes, _ = ask("nvmlDeviceGetMaxPcieLinkWidth", otherwise=16)
    model = _text(_asked(pynvml, "nvmlDeviceGetName", handle)) or "NVIDIA GPU"
    sms, sms_source = max(1, int(cores) // per_sm), f"{cores_source}, over {per_sm} cores an SM"
    memory = _asked(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    memory_bytes = float(memory.total) if memory else host_bytes
    bytes_source = (
        "NVML, nvmlDeviceGetMemoryInfo"
        if memory
        else "assumed: the host's memory, which a GPU that tells none shares"
    )
    share = 1.0
    if gpu.part is not None:
        sizes = _asked(pynvml, "nvmlDeviceGetAttributes", gpu.part)
        own = _asked(pynvml, "nvmlDeviceGetMemoryInfo", gpu.part)
        if sizes is None or own is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        memory_share = float(own.total) / memory_bytes
        share, sms = min(1.0, sizes.multiprocessorCount / sms), int(sizes.multiprocessorCount)
        memory_bytes, bus = float(own.total), bus * memory_share
        cores, sms_source = sms * per_sm, "NVML, nvmlDeviceGetAttributes of the part"
        model = f"{model}, a part of {sms} SMs"
    limit, limit_source = (
        share * limit,
        limit_source + (" times the share of SMs" if share < 1 else ""),
    )
    device = Device(
        name,
        "gpu",
        width=sms,
        width_unit="sm",
        max_lanes=1,
        memory_bytes=memory_bytes,
        peak_flops_per_s=2 * cores * clock * 1e6,
        memory_bytes_per_s=2 * memory_clock * 1e6 * bus / 8,
        overhead_s=LAUNCH_S,
        idle_power_w=GPU_IDLE_SHARE * limit / 1e3,
        context_power_w=GPU_CONTEXT_SHARE * limit / 1e3,
        active_power_w=limit / 1e3,
        model=model,
        figures={
            "clock_hz": clock * 1e6,
            "float64_flops_per_s": 2 * cores * clock * 1e6 * (0.5 if halved else 1 / 64),
        },
        sources={
            "float64_flops_per_s": "CUDA programming guide: "
            + (f"half of float32's, capability {capability}" if halved else "1/64 of float32's"),
            "width": sms_source if gpu.part else f"{sms_source} (CUDA programming guide)",
            "max_lanes": "one stream",
            "memory_bytes": bytes_source,
            "peak_flops_per_s": f"cores · 2 flops · highest SM clock ({clock_source})",
            "memory_bytes_per_s": f"bus width · highest memory clock · 2 ({memory_source})",
            "overhead_s": "assumed: one CUDA launch",
            "idle_power_w": "assumed: a tenth of the power limit",
            "context_power_w": "assumed: a fifth of the power limit (arXiv 2605.23918 reads 0.17 "
            "to 0.29)",
            "active_power_w": limit_source,
            "clock_hz": clock_source,
        },
    )
    link = Link(
        "cpu",
        name,
        latency_s=PCIE_LATENCY_S,
        bytes_per_s=PCIE_LANE_BYTES_PER_S.get(int(generation), 0.985e9) * max(1.0, lanes),
        per_message_s=LAUNCH_S,
        sources={
            "latency_s": "assumed: one small copy with its driver call",
            "bytes_per_s": f"PCIe generation and lanes ({link_source}), line rate",
            "per_message_s": "assumed: one driver call",
        },
        band=UNTIMED,
    )
    return device, link
