"""CUDA kernels beside those of the CPU: the same arrays given to both, and what they made of them.

A test makes the arrays of a kernel (`arrays`), fires it on the CPU (`fire_native`) and, in CUDA, on
the fibres that stand in for a GPU (`fire_cuda`), and compares. `assert_compiles` asks the compiler
for every architecture, `sanitized` runs launches with AddressSanitizer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pearl.testing.kernel_buffers import copied
from pearl_devices import Kernel, backend
from pearl_devices.buffers import allocate
from pearl_devices.gpu import cuda_emulator
from pearl_devices.gpu.driver import HostDriver, Launch
from pearl_devices.gpu.kernels import find_written
from pearl_devices.gpu.nvrtc import ARCHITECTURES, compile_program
from pearl_devices.gpu.program import Program

Array = npt.NDArray[Any]

ORDERS = (0, 1, 7)
"""Of a block's threads: forwards, backwards, shuffled."""


@dataclass(frozen=True)
class Prepared:
    """A launch that a binder prepared, as the driver was given it."""

    program: Program
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared_bytes: int


@dataclass
class NotingTwin(HostDriver):
    """The stand-in, noting all that is prepared. order: of a block's threads. launches: whether a
    launch computes anything; a program that need not is not built."""

    order: int = 0
    launches: bool = True
    prepared: list[Prepared] = field(default_factory=list)

    def prepare_launch(
        self,
        program: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Launch:
        self.prepared.append(
            Prepared(program, kernel, tuple(grid), tuple(block), tuple(arguments), shared_bytes)
        )
        if not self.launches:
            return lambda: None
        return super().prepare_launch(program, kernel, grid, block, arguments, shared_bytes)


def arrays(kernel: Kernel, given: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """The arrays of a kernel: zeros, or as given; a value for a whole array may be a number."""
    found: dict[str, Array] = dict(allocate([kernel]))
    for name, value in (given or {}).items():
        found[name][...] = value
    return found


def tensors(given: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Copies, as tensors."""
    return {name: torch.from_numpy(array.copy()) for name, array in given.items()}


def on_the_host(given: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.cpu().numpy().copy() for name, tensor in given.items()}


def bind_cuda(
    kernel: Kernel, device: Mapping[str, torch.Tensor], driver: HostDriver, variant: str = "cuda"
) -> Callable[[], Any]:
    """The call that a variant of the kernel's record binds over tensors."""
    module, _, function = find_written(kernel)[variant].program(kernel).partition(":")
    call: Callable[[], Any] = getattr(import_module(module), function)(kernel, device, driver)
    return call


def fire_native(
    kernel: Kernel, given: Mapping[str, Array], firings: int = 1, variant: str = "native"
) -> dict[str, Array]:
    """The arrays after some firings on the CPU; what is given stays."""
    found = copied(dict(given))
    call = backend("cpu").bind(kernel, variant, found)
    for _ in range(firings):
        call()
    return found


def fire_cuda(
    kernel: Kernel,
    given: Mapping[str, Array],
    firings: int = 1,
    *,
    driver: HostDriver | None = None,
    variant: str = "cuda",
) -> dict[str, Array]:
    """The arrays after some firings in CUDA on the stand-in; what is given stays."""
    device = tensors(given)
    call = bind_cuda(kernel, device, driver or HostDriver(), variant)
    for _ in range(firings):
        call()
    return on_the_host(device)


def assert_equal(found: Mapping[str, Array], wanted: Mapping[str, Array], *names: str) -> None:
    """The same bits; names: of which arrays (all by default), whole or by a prefix with a dot."""
    for name in _named(wanted, names):
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def assert_near(found: Array, wanted: Array, before: Array | float = 0.0, name: str = "") -> None:
    """Of float32: the relative difference is at most 1e-5 in the median, and nowhere more than 1e-4
    of the largest change.

    before: what the elements were, from which a change is counted.
    """
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    change = np.abs(wanted - np.asarray(before, np.float64))
    off = np.abs(found - wanted)
    assert np.isfinite(found).all(), name
    assert change.max() > 0, f"{name}: nothing changes, so that nothing is compared"
    moved = change > 0
    assert np.median(off[moved] / change[moved]) <= 1e-5, name
    worst = int(off.argmax())
    assert off.max() <= 1e-4 * change.max(), (
        f"{name}: element {worst} is {found.flat[worst]}, not {wanted.flat[worst]}; the largest "
        f"change is {change.max()}"
    )


def _named(arrays: Iterable[str], names: tuple[str, ...]) -> list[str]:
    found = [
        name
        for name in arrays
        if not names or any(name == n or (n.endswith(".") and name.startswith(n)) for n in names)
    ]
    assert found, names
    return found


def assert_compiles(
    program: Program,
    stack_bytes: int = 0,
    registers: int = 255,
    architectures: Iterable[str] = ARCHITECTURES,
) -> None:
    """Without spills.

    stack_bytes: that a thread may take, where there is a reason for it. registers: at most.
    """
    for architecture in architectures:
        resources = compile_program(program, architecture).resources
        assert set(resources) == set(program.kernels) != set()
        for kernel, used in resources.items():
            who = f"{kernel}, {architecture}: {used}"
            assert used.spill_bytes == 0, who
            assert used.stack_bytes <= stack_bytes, who
            assert used.registers <= registers, who


CHILD = """
import ctypes, json, sys
from pathlib import Path
given = json.loads(Path(sys.argv[1]).read_text())
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
places = []
for file in given["arrays"]:
    data = Path(file).read_bytes()
    at = libc.malloc(ctypes.c_size_t(len(data)))
    ctypes.memmove(at, data, len(data))
    places.append(at)
for launch in given["launches"]:
    types = {"array": lambda i: ctypes.c_void_p(places[i]), "int": ctypes.c_int64,
             "float": ctypes.c_double}
    values = [types[kind](value) for kind, value in launch["arguments"]]
    addresses = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    sizes = [(ctypes.c_uint * 3)(*launch[name]) for name in ("grid", "block")]
    run = getattr(ctypes.CDLL(launch["library"]), "launch_" + launch["kernel"])
    status = run(*sizes, ctypes.c_size_t(launch["shared_bytes"]), addresses,
                 ctypes.c_uint(launch["order"]))
    assert status == 0, status
print("all launches ran")
"""


def sanitized(
    launches: Sequence[Prepared], folder: Path, *, order: int = 0, short: Any = None
) -> str:
    """Runs launches one after the other with AddressSanitizer, in a process of its own, over copies
    of their arrays, each with nothing usable before and after it. What it reports; "" if nothing.

    short: one of the tensors; it is given without its last element, as if the kernel wrote or read
        beyond its end. A test does so to see that this would be reported.
    """
    places: dict[int, int] = {}
    files: list[str] = []

    def told(argument: Any) -> tuple[str, Any]:
        if isinstance(argument, bool | int):
            return "int", int(argument)
        if isinstance(argument, float):
            return "float", argument
        at = int(argument.data_ptr())
        if at not in places or argument.numel() == 0:
            places[at] = len(files)
            cut = argument.element_size() if argument is short else 0
            data = argument.reshape(-1).view(torch.uint8).numpy().tobytes()
            files.append(str(folder / f"array-{len(files)}"))
            Path(files[-1]).write_bytes(data[: len(data) - cut])
        return "array", places[at]

    told_launches = [
        {
            "library": str(cuda_emulator.build_library(launch.program, sanitize=True)),
            "kernel": launch.kernel,
            "grid": (*launch.grid, 1, 1)[:3],
            "block": (*launch.block, 1, 1)[:3],
            "arguments": [told(argument) for argument in launch.arguments],
            "shared_bytes": launch.shared_bytes,
            "order": order,
        }
        for launch in launches
    ]
    assert short is None or any(short is a for launch in launches for a in launch.arguments)
    told_file = folder / "launches.json"
    told_file.write_text(json.dumps({"arrays": files, "launches": told_launches}))
    library = subprocess.run(
        [os.environ.get("CXX", "g++"), "-print-file-name=libasan.so"],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.strip()  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CHILD, str(told_file)], capture_output=True, text=True,
        check=False, timeout=300,
        env={"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    if ran.returncode == 0:
        assert ran.stdout.strip() == "all launches ran"
        return ""
    assert "AddressSanitizer" in ran.stderr, ran.stderr
    return ran.stderr


def assert_stays_inside(launches: Sequence[Prepared], folder: Path, *shortened: Any) -> None:
    """No launch leaves its arrays. Of each that is shortened by an element, that is reported."""
    assert sanitized(launches, folder) == ""
    for short in shortened:
        assert "heap-buffer-overflow" in sanitized(launches, folder, short=short)
