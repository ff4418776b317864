"""Comparison of a GPU with the CPU: every kernel that it offers, on small examples.

Each kernel fires once on the device and once on the CPU, from the same arrays. Hand-written kernels
are compared with the native kernel. A torch program is compared with the same program, because two
programs of one algorithm may differ on inputs that no run has (A2C learning from another policy's
rollouts). Whole numbers must be equal. Differences of other arrays are shares of the array's
largest
change: the median at most 1e-5 and the largest at most 1e-4, as float32 gives with another order of
sums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices import backend, cpu, offers
from pearl_devices.base import (
    OPT_IN_VARIANTS,
    Buffers,
    Call,
    Device,
    DeviceFailed,
    UnsupportedError,
)
from pearl_devices.buffers import specs
from pearl_devices.cache_folder import cache_folder
from pearl_devices.gpu.binding import handwritten_variants
from pearl_devices.gpu.kernels import on_host
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.examples import HORIZON, fill_arrays, loops

MEDIAN, WORST = 1e-5, 1e-4
"""Allowed shares of the largest change of an array."""
NATIVE = "native"
TORCH = "torch"


@dataclass(frozen=True)
class Verdict:
    """The result for one kernel.

    kernel: its kind. variant: as the device offers it.
    array: the array with the largest difference; empty if all are equal or none was compared.
    median, worst: its differences, as shares of the largest change; for whole numbers 0 or 1.
    why: the reason if the kernel could not run, else empty.
    """

    kernel: str
    variant: str
    array: str = ""
    median: float = 0.0
    worst: float = 0.0
    why: str = ""

    @property
    def passed(self) -> bool:
        return not self.why and self.median <= MEDIAN and self.worst <= WORST

    @property
    def text(self) -> str:
        """Return the verdict as a readable line."""
        name = f"{self.kernel} {self.variant}"
        if self.why:
            return f"{name}: could not be run: {self.why}"
        if self.passed:
            return f"{name}: pass"
        return (
            f"{name}: {self.array} differs from the CPU's by {self.worst:.1e} of its largest "
            f"change (median {self.median:.1e}; {WORST:g} and {MEDIAN:g} are allowed)"
        )


def verify(
    device: Device, number: int = 0, *, only: Callable[[Kernel, str], bool] | None = None
) -> list[Verdict]:
    """Return a verdict for every kernel and variant that a GPU offers by default.

    number: of the device among those of its kind. only: (kernel, variant) → whether to check it.
    """
    return list(_each(device, number, only))


def first_use(device: Device, number: int, uses: Iterable[tuple[Kernel, str]]) -> list[str]:
    """Verify the kinds and variants that a plan uses; return a line for each that fails.

    A passed check is not repeated on this model with the same versions and sources.
    """
    name = f"{_digest(device, number)}.json"
    file = cache_folder() / "verified" / name
    try:
        known = set(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        known = set()
    wanted = {f"{k.kind} {v}" for k, v in uses} - known
    if not wanted:
        return []
    left = set(wanted)

    def once(kernel: Kernel, variant: str) -> bool:
        found = f"{kernel.kind} {variant}" in left
        left.discard(f"{kernel.kind} {variant}")
        return found

    found = verify(device, number, only=once)
    known |= {f"{v.kernel} {v.variant}" for v in found if v.passed}
    known -= {f"{v.kernel} {v.variant}" for v in found if not v.passed}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = file.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(sorted(known)), encoding="utf-8")
    scratch.replace(file)
    return list(dict.fromkeys(v.text for v in found if not v.passed))


def _digest(device: Device, number: int) -> str:
    """Digest of everything on which a verdict depends."""
    import torch

    kind: Any = backend(device.kind)
    where = kind.memory(number).device
    model = torch.cuda.get_device_name(where) if where.type == "cuda" else device.model
    text = [device.kind, model, torch.__version__, str(torch.version.cuda)]
    here = Path(__file__).parent
    for folder in (here, here.parent / "kernels", here.parent / "primitives"):
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".py", ".cu", ".cuh", ".h"):
                text.append(sha256(file.read_bytes()).hexdigest())
    return sha256("\n".join(text).encode()).hexdigest()[:24]


def _each(
    device: Device, number: int, only: Callable[[Kernel, str], bool] | None
) -> Iterator[Verdict]:
    for kernels in loops():
        offered = [[v for v, _ in offers(k, device) if _is_wanted(k, v, only)] for k in kernels]
        last = max((at for at, found in enumerate(offered) if found), default=-1)
        arrays, acting = fill_arrays(kernels), list[Call]()
        for name in arrays:  # the acting network is the learning one
            if name.startswith("policy.") and (learner := f"learner.{name[7:]}") in arrays:
                arrays[name][:] = arrays[learner]
        for at, kernel in enumerate(kernels[: last + 1]):
            for variant in offered[at]:
                yield _check_firing(device, number, kernel, variant, arrays)
            if at == last:
                break
            fire = cpu.bind(kernel, NATIVE, arrays)
            fire()
            if kind_of(kernel).side == "acts":
                acting.append(fire)
            elif kind_of(kernel).structure in ("insert", "store"):
                for _ in range(HORIZON):  # fill the replay or the rollout
                    for one in (*acting, fire):
                        one()


def _is_wanted(kernel: Kernel, variant: str, only: Callable[[Kernel, str], bool] | None) -> bool:
    """Whether to check a variant. An opt-in variant is checked if it is in use and computes the
    same as the native one, with arrays in another place."""
    if only is None:
        return variant not in OPT_IN_VARIANTS
    same = variant not in OPT_IN_VARIANTS or on_host(kernel, variant)
    return bool(same) and only(kernel, variant)


def _check_firing(
    device: Device, number: int, kernel: Kernel, variant: str, arrays: Buffers
) -> Verdict:
    """The verdict on one firing from `arrays`, which stay unchanged."""
    names = specs(kernel)
    mine, its = ({n: arrays[n].copy() for n in names} for _ in range(2))
    try:
        _fire(device, number, kernel, variant, its)
    except (UnsupportedError, DeviceFailed) as error:
        return Verdict(kernel.kind, variant, why=str(error))
    cpu.bind(kernel, NATIVE if variant in handwritten_variants(kernel) else TORCH, mine)()
    found = [(n, *_differences(arrays[n], mine[n], its[n])) for n in kind_of(kernel).written(names)]
    name, median, worst = max(found, key=lambda each: (each[2], each[1]))
    return Verdict(kernel.kind, variant, name if worst else "", median, worst)


def _fire(device: Device, number: int, kernel: Kernel, variant: str, arrays: Buffers) -> None:
    """Do one firing on the device, from and to host arrays."""
    kind: Any = backend(device.kind)
    memory = kind.memory(number)
    held = [n for n in specs(kernel) if memory.holds(kernel, variant, n)]
    twins = {n: memory.twin(arrays[n]) for n in held}
    call = kind.bind(kernel, variant, {**arrays, **twins})
    pairs = tuple((arrays[n], twins[n]) for n in held)
    memory.firing(call, kernel, (), pairs, "verify")()


def _differences(
    before: npt.NDArray[Any], mine: npt.NDArray[Any], its: npt.NDArray[Any]
) -> tuple[float, float]:
    """Median and largest difference of two arrays, as shares of the first one's largest change."""
    if mine.dtype.kind != "f":
        wrong = float((mine != its).any())
        return wrong, wrong
    if not np.array_equal(np.isfinite(mine), np.isfinite(its)):
        return np.inf, np.inf
    change = float(np.max(np.abs(np.float64(mine) - before), initial=0.0))
    off = np.abs(np.float64(mine) - its) / (change or 1.0)
    return (float(np.median(off)), float(off.max())) if off.size else (0.0, 0.0)
