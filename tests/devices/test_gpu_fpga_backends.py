"""The backends of GPU and FPGA keep the contract: one emulates, the other refuses to bind."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from pearl.testing import BackendContract
from pearl_devices import Device, Kernel, UnsupportedError, backend, kernel, offers, trust_kind
from pearl_devices.buffers import specs
from pearl_devices.kernels import KINDS
from tests.devices.test_cpu_backend import dqn_kernels

trust_kind("pearl_devices.gpu.stand_in")


class TestFpga(BackendContract):
    device: ClassVar[Device] = Device(
        "fpga", "fpga", width=4510,
        figures={
            "clock_hz": 250e6, "ram_blocks": 7110, "ram_block_bits": 20480, "ram_word_bits": 40,
            "float32_cycles": 4,
        },
    )  # fmt: skip
    kernels: ClassVar[tuple[Kernel, ...]] = tuple(
        k for k in dqn_kernels()[1:] if k.kind != "learn.dqn"
    )


class TestGpu(BackendContract):
    device: ClassVar[Device] = Device("gpu", "gpu", width=82)
    kernels: ClassVar[tuple[Kernel, ...]] = (dqn_kernels()[1], dqn_kernels()[4], dqn_kernels()[7])
    binds: ClassVar[bool] = False


@pytest.mark.parametrize("kind", [k for k in KINDS if k.startswith("tabular.")])
def test_a_table_is_offered_to_no_gpu_and_binding_it_names_the_kernel(kind: str) -> None:
    k = kernel(kind, envs=2, obs=1, act=0, states=4, actions=2)
    assert offers(k, TestGpu.device) == ()
    for device_kind in ("gpu", "pearl_devices.gpu.stand_in"):
        with pytest.raises(UnsupportedError, match=rf"kernel {kind} .* on a gpu; it has none"):
            backend(device_kind).bind(k, "cuda", {n: torch.zeros(1) for n in specs(k)})
