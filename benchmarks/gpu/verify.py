"""Whether every kernel of the device computes what the CPU's does (`pearl devices --verify`)."""

from __future__ import annotations

from benchmarks.gpu.target import Case, Target


def run(target: Target) -> list[Case]:
    from pearl_devices.gpu.verify import verify

    return [
        Case(f"{v.kernel} {v.variant}", v.passed, {"kernels": 1}, note="" if v.passed else v.text)
        for v in verify(target.device, target.number)
    ]
