"""CUDA programs compiled to machine code by NVRTC. Needs no driver and no GPU.

Options and functions: NVIDIA, "NVRTC", CUDA 12.9. The library is that of the PyPI package
nvidia-cuda-nvrtc-cu12 (or -cu13), which CUDA builds of torch install, or one that the system finds.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pearl_devices.base import UnsupportedError
from pearl_devices.gpu.program import Program

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
"""NVIDIA GPUs for which tests compile the programs: A100, H100, B200."""

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(.*)")


@dataclass(frozen=True)
class Resources:
    """Resources of one kernel, as ptxas reports them. All but barriers are per thread, shared_bytes
    (the static part) per block."""

    registers: int
    barriers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class MachineCode:
    """Machine code of a program. code: cubin; resources: by kernel; log: the compiler's."""

    code: bytes
    resources: Mapping[str, Resources]
    log: str


class CompileError(UnsupportedError):
    """The compiler refuses a program; the text is its log."""


@cache
def library() -> ctypes.CDLL:
    """Load NVRTC.

    Raises:
        UnsupportedError: NVRTC is not installed; the text says how to install it.
    """
    found = find_spec("nvidia")
    folders = [Path(p) for p in found.submodule_search_locations or ()] if found else []
    files = [
        file
        for folder in folders
        for name in ("cuda_nvrtc/lib", "cu13/lib")
        for file in sorted((folder / name).glob("libnvrtc.so.*"), reverse=True)
    ]
    for name in (*map(str, files), find_library("nvrtc")):
        if name:
            return ctypes.CDLL(name)
    raise UnsupportedError(
        "NVRTC, which compiles CUDA programs, is missing: pip install nvidia-cuda-nvrtc-cu12"
    )


def compile_program(program: Program, architecture: str) -> MachineCode:
    """Compile the program for one architecture, such as sm_90a.

    Raises:
        CompileError: the compiler refuses it; the text is its log.
        UnsupportedError: no compiler is installed.
    """
    nvrtc, handle = library(), ctypes.c_void_p()
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        "-lineinfo",
        f"--fmad={'false' if program.exact else 'true'}",
    ]
    given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    text, name = program.text.encode(), program.file.encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(handle), text, name, 0, None, None), program)
    try:
        status = nvrtc.nvrtcCompileProgram(handle, len(options), given)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, handle).decode()
        if status:
            raise CompileError(f"{program.file}, {architecture}: {log.strip()}")
        code = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, handle, cut=0)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return MachineCode(code, _resources(log), log)


def _check(status: int, program: Program) -> None:
    if status:
        raise UnsupportedError(f"{program.file}: NVRTC gives error {status}")


def _text(size: object, get: object, handle: ctypes.c_void_p, cut: int = 1) -> bytes:
    count = ctypes.c_size_t()
    size(handle, ctypes.byref(count))  # type: ignore[operator]
    buffer = ctypes.create_string_buffer(count.value)
    get(handle, buffer)  # type: ignore[operator]
    return buffer.raw[: count.value - cut]


def _resources(log: str) -> dict[str, Resources]:
    """Kernel → resources, from the lines that ptxas -v prints: name, stack and spills, use."""
    found: dict[str, Resources] = {}
    entry, spills = "", (0, 0, 0)
    for line in log.splitlines():
        if named := ENTRY.search(line):
            entry = named[1]
        elif counted := SPILLS.search(line):
            spills = (int(counted[1]), int(counted[2]), int(counted[3]))
        elif entry and (used := USED.search(line)):
            rest = used[2]
            found[entry] = Resources(
                int(used[1]),
                _number(rest, r"used (\d+) barriers"),
                spills[0],
                spills[1] + spills[2],
                _number(rest, r"(\d+) bytes smem"),
            )
            entry = ""
    return found


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
