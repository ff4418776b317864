"""The probe of a host: costs of its CPU that no data sheet states, in one or two seconds.

The probe measures torch's dispatch of an operator, one core's rate of torch's products by size and
of a native product, the rate of its memory, and the handoff between two processes. It is a rung
below calibration. Times of another CPU are scaled by the probe instead of by clock and peak of a
data sheet, and the probe gives the start costs of eager variants of a GPU of this host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from pearl_devices import Kernel, UnsupportedError
from pearl_devices.cache_folder import cache_folder
from pearl_devices.cpu_count import usable_cpu_count
from pearl_devices.kernels import kind_of
from pearl_devices.torch_threads import require_torch
from pearl_estimators import sealed_files
from pearl_estimators.host.calibration import host, versions
from pearl_estimators.sealed_files import CalibrationError, checksum

SCHEMA = 2
SIDES = (16, 64, 256, 1024)
"""Rows, inputs and outputs of the products that are timed."""
COPIED = 1 << 26
"""Bytes of a copy: more than the caches of one core hold."""
EACH_S, TIMEOUT_S = 0.03, 120.0
NATIVE_SIDE = 256
"""Rows, inputs and outputs of the native product that is timed."""
TOGETHER = 64
"""Operators in a row that are timed as one."""
RUNTIME = "pearl.runtime.lanes.overhead"
"""The module whose `partner` times a handoff, if the runtime is installed."""
SMALL_FLOPS = 3e5
"""Largest flops of the timed gradient steps, so that almost all of their time is dispatch."""


@dataclass(frozen=True)
class CpuProbe:
    """Costs of one core of a CPU, in seconds, flop/s and bytes/s.

    operator_s: dispatch of an eager operator of torch without gradients.
    gradient_s: dispatch of an operator of a gradient step, the mean over forward and backward pass
        and optimiser, with operators as the kinds' records count them.
    products: side of a square float32 product of torch → its rate.
    native_flops_per_s: rate of a native product of NATIVE_SIDE.
    memory_bytes_per_s: read and written by a large copy.
    handoff_s: from one process to another that spins; None with one core, or without a runtime.
    source: method, CPU and date.

    Raises:
        ValueError: a number is not finite and above 0, or a side is missing.
    """

    operator_s: float
    gradient_s: float
    products: Mapping[str, float]
    native_flops_per_s: float
    memory_bytes_per_s: float
    handoff_s: float | None
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "products", MappingProxyType(dict(self.products)))
        numbers = {n: v for n, v in vars(self).items() if isinstance(v, int | float)}
        numbers |= {f"products.{side}": rate for side, rate in self.products.items()}
        for name, value in numbers.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"probe: {name} is {value}; it must be finite and above 0")
        if absent := [s for s in SIDES if str(s) not in self.products]:
            raise ValueError(
                f"probe: no rate of products of side {absent}; the sides must be {SIDES}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return a plain object."""
        return {**vars(self), "products": dict(self.products)}


REFERENCE = CpuProbe(
    operator_s=2.0e-6,
    gradient_s=5.3e-6,
    products={"16": 7.4e9, "64": 79e9, "256": 99e9, "1024": 96e9},
    native_flops_per_s=228e9,
    memory_bytes_per_s=40e9,
    handoff_s=2.36e-6,
    source="`pearl calibrate --probe` on 2 × AMD EPYC (AVX-512, a virtual machine), 2026-11-23",
)
"""Probe of the CPU whose costs are in `cpu_datasheet`."""


def probe_path() -> Path:
    """Return the path of this host's probe, next to its calibration."""
    return cache_folder() / f"probe{SCHEMA}-{checksum(host())[:12]}.json"


def probe() -> CpuProbe:
    """Probe this host in a separate process, and store the result.

    Raises:
        CalibrationError: torch is not installed, or the probe fails or cannot be stored.
    """
    from pearl_estimators.host.child_process import run_in_child

    try:
        require_torch("the probe of this host")
    except UnsupportedError as error:
        raise CalibrationError(str(error)) from None
    found = CpuProbe(**run_in_child("probe", EACH_S, timeout_s=TIMEOUT_S, request={}))
    body = {"schema": SCHEMA, "host": host(), "torch": _torch(), "probe": found.to_json()}
    file = probe_path()
    try:
        sealed_files.store(file, sealed_files.seal(body))
    except OSError as error:
        raise CalibrationError(
            f"{error.filename or file}: {error.strerror}; set PEARL_CACHE_DIR to another folder"
        ) from None
    return found


def _torch() -> str:
    return versions()["torch"]


def load_probe() -> CpuProbe | None:
    """Return the stored probe of this host; None if there is none, or it is of another torch.

    Raises:
        CalibrationError: the file is damaged.
    """
    return sealed_files.load(probe_path(), _read, "; `pearl calibrate --probe` makes it again")


def _read(value: Any) -> CpuProbe | None:
    body = sealed_files.unseal(value, SCHEMA, "probe")
    same = (body["host"], body["torch"]) == (host(), _torch())
    return CpuProbe(**body["probe"]) if same else None


# ---------------------------------------------------------------------- in the child


def time_probe(seconds: float) -> dict[str, Any]:
    """Time the fields of a CpuProbe, each for about `seconds`; runs in the child process.

    Times are CPU seconds, which do not grow if another program has the core.
    """
    with _partner() as handoff_s:  # starts during torch's import
        import numpy as np
        import torch

        from pearl_devices.primitives.math.products import affine
        from pearl_estimators.host.benchmark_kernels import bind_filled
        from pearl_estimators.host.timer import time_call

        def taken_s(call: Any) -> float:
            return time_call(call, seconds=seconds).low_s

        number = torch.zeros(1)

        def operators() -> None:
            for _ in range(TOGETHER):
                number.add_(1)

        gradients = [taken_s(bind_filled(k, "torch")) / kind_of(k).operations(k) for k in _small()]
        rates = {}
        for side in SIDES:
            a, b, c = torch.ones(side, side), torch.ones(side, side), torch.ones(side, side)
            rates[str(side)] = 2.0 * side**3 / taken_s(lambda a=a, b=b, c=c: torch.mm(a, b, out=c))
        sides = np.ones((3, NATIVE_SIDE, NATIVE_SIDE), np.float32)
        bias = np.zeros(NATIVE_SIDE, np.float32)
        native_s = taken_s(lambda: affine(sides[0], sides[1], bias, sides[2], 1))
        source = np.ones(COPIED // 8, np.float32)
        target = np.empty_like(source)
        when = time.strftime("%Y-%m-%d", time.gmtime())
        return {
            "operator_s": taken_s(operators) / TOGETHER,
            "gradient_s": median(gradients),
            "products": rates,
            "native_flops_per_s": 2.0 * NATIVE_SIDE**3 / native_s,
            "memory_bytes_per_s": COPIED / taken_s(lambda: np.copyto(target, source)),
            "handoff_s": handoff_s(),
            "source": f"`pearl calibrate --probe` on {host()['cpu']}, {when}",
        }


def _small() -> Iterator[Kernel]:
    """A small gradient step in torch of each algorithm that has a sufficiently small one."""
    from pearl_estimators.host.benchmark_kernels import offered_variants
    from pearl_estimators.host.random_kernels import DRAWS, draw_kernels

    for name, (_, kind, _) in DRAWS.items():
        if kind.structure == "gradient":
            with suppress(ValueError):
                _, found = next(draw_kernels([name], 3, most_flops=SMALL_FLOPS, most_steps=1))
                if "torch" in offered_variants(found):
                    yield found


def _partner() -> AbstractContextManager[Callable[[], float | None]]:
    """Another process, and the function that measures the handoff to it."""
    if usable_cpu_count() < 2 or find_spec(RUNTIME.partition(".")[0]) is None:
        return nullcontext(lambda: None)
    started: AbstractContextManager[Callable[[], float | None]] = import_module(RUNTIME).partner()
    return started
