"""The backends of GPU and FPGA keep the contract: one emulates, the other refuses to bind."""

from __future__ import annotations

from typing import ClassVar

from pearl.testing import BackendContract
from pearl_devices import Device, Kernel
from tests.devices.test_cpu_backend import dqn_kernels


class TestFpga(BackendContract):
    device: ClassVar[Device] = Device(
        "fpga",
        "fpga",
        width=4510,
        figures={"clock_hz": 250e6, "m20k_blocks": 7110, "m20k_bits": 20480},
    )
    kernels: ClassVar[tuple[Kernel, ...]] = dqn_kernels()[1:]


class TestGpu(BackendContract):
    device: ClassVar[Device] = Device("gpu", "gpu", width=82)
    kernels: ClassVar[tuple[Kernel, ...]] = (dqn_kernels()[1], dqn_kernels()[4], dqn_kernels()[7])
    binds: ClassVar[bool] = False
