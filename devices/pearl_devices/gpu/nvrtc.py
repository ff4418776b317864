"""CUDA programs compiled to machine code by NVRTC. Needs no driver and no GPU.

Options and functions: NVIDIA, "NVRTC", CUDA 12.9. The library is that of the PyPI package
nvidia-cuda-nvrtc-cu12 (or -cu13), which CUDA builds of torch install, or one that the system finds.
The user's cache folder keeps the code under a digest of compiler, options and source.
"""

from __future__ import annotations

import ctypes
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from pearl_devices.base import UnsupportedError
from pearl_devices.cache_folder import cache_folder, doubts
from pearl_devices.gpu.program import Program

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
"""NVIDIA GPUs for which tests compile the programs: A100, H100, B200."""

FOLDER = "gpu-code"
"""Of the cache: one file for each program and architecture."""

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
    """Compile the program for one architecture, such as sm_90a, unless the cache has its code. A
    cache that cannot be written, or that another user can write, is not used.

    Raises:
        CompileError: the compiler refuses it; the text is its log.
        UnsupportedError: no compiler is installed.
    """
    options = (
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        "-lineinfo",
        f"--fmad={'false' if program.exact else 'true'}",
    )
    key = "\n".join((*_version(), program.file, *options, program.text))
    folder = (cache_folder() / FOLDER).resolve()
    file = folder / f"{sha256(key.encode()).hexdigest()}.cubin"
    if (kept := _read(file)) is None:
        kept = _compile(program, architecture, options)
        _write(file, *kept)
    log, code = kept
    return MachineCode(code, _resources(log), log)


def _version() -> tuple[str, str]:
    """The version of NVRTC, and the size of its file, since builds of one version differ."""
    nvrtc, numbers = library(), (ctypes.c_int(), ctypes.c_int())
    nvrtc.nvrtcVersion(*map(ctypes.byref, numbers))
    file = Path(nvrtc._name)
    version = ".".join(str(number.value) for number in numbers)
    return version, str(file.stat().st_size if file.is_absolute() else nvrtc._name)


def _read(file: Path) -> tuple[str, bytes] | None:
    """Return the log and the code of a file; None if it is absent, damaged or not to be trusted."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        if doubts(file.parent):
            return None
        head, _, code = file.read_bytes().partition(b"\n")
        about = json.loads(head)
        if about["sha256"] == sha256(code).hexdigest():
            return str(about["log"]), code
    return None


def _write(file: Path, log: str, code: bytes) -> None:
    head = json.dumps({"sha256": sha256(code).hexdigest(), "log": log})
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if doubts(file.parent):
            return
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            made = Path(scratch) / file.name
            made.write_bytes(head.encode() + b"\n" + code)
            made.replace(file)


def _compile(program: Program, architecture: str, options: Sequence[str]) -> tuple[str, bytes]:
    """Return the log and the machine code."""
    nvrtc, handle = library(), ctypes.c_void_p()
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
    return log, code


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
