"""Registers and logic cells of the engines: a table of what yosys makes of the Verilog.

`logic.json` has an entry for each size of an engine that plans choose from; `synthesis` makes it
again. Blocks of float32 and memories are no part of an entry: `resources` counts both exactly.
A delay line counts as registers, which is more than a tool needs that puts it into memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pearl_devices.base import Device
from pearl_devices.fpga.program import Shape

UNITS = {"alms": "adaptive logic modules", "luts": "lookup tables of six inputs"}
"""Figure of a part that counts its logic cells → their name: `alms` on an Intel part, each two
small lookup tables or one of six inputs; `luts` on an AMD part. `registers` stands beside it."""

DEEPEST = {4: 6, 8: 7, 16: 6}
"""Fan-out of a sum tree that plans choose from → levels of the largest one in the table: 2^24
leaves, more than the memory of any part in the catalogue holds."""


class Logic(NamedTuple):
    """cells: logic cells of a unit of `UNITS`. registers: flip-flops."""

    cells: int
    registers: int


def learner_entry(shape: Shape, tanh: bool) -> str:
    """The entry of a learner; tanh: of DDPG's actor."""
    return f"engine N={shape.array} P={shape.lanes} ACTOR={int(tanh)}"


def tree_entry(fanout: int, depth: int) -> str:
    """The entry of a sum tree of so many levels."""
    return f"tree K={fanout} D={depth}"


@cache
def golden_table() -> dict[str, Any]:
    """yosys: the version of the wheel. alms, luts: entry → [cells, registers]."""
    text = files("pearl_devices.fpga").joinpath("logic.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def logic_of(entry: str, unit: str) -> Logic | None:
    """What an entry takes in a unit of `UNITS`; None where the table has no such entry."""
    found = golden_table()[unit].get(entry)
    return Logic(*found) if found else None


def logic_misfit(entries: Sequence[str], device: Device, what: str) -> str:
    """Why the logic of engines finds no room; empty where it does, or where the part gives no
    figure of its logic cells."""
    for unit, name in UNITS.items():
        if unit not in device.figures:
            continue
        needs = [need for entry in entries if (need := logic_of(entry, unit))]
        cells, registers = sum(n.cells for n in needs), sum(n.registers for n in needs)
        given = (unit, name, cells), ("registers", "registers", registers)
        for figure, words, count in given:
            limit = device.figures.get(figure)
            if limit is not None and count > limit:
                return f"{what} needs {count:,} {words}, has {limit:,.0f}"
    return ""
