"""Registers and logic cells of the engines: a table of what yosys makes of the Verilog.

`synthesis` makes the table, `logic.json`. Blocks of float32 and memories are no part of an entry:
`resources` counts both exactly. A delay line counts as registers, which is more than a tool needs
that puts it into memory. Cells are Intel's adaptive logic modules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pearl_devices.base import Device
from pearl_devices.fpga.program import Shape

CELLS = "adaptive logic modules"

DEEPEST = {4: 6, 8: 7, 16: 6}
"""Fan-out of a sum tree that plans choose from → levels of the largest: 2^24 leaves, more than the
memory of any part in the catalogue holds."""


class Logic(NamedTuple):
    """cells: logic cells. registers: flip-flops. least: of a part of the engine, for the table has
    no entry of the whole."""

    cells: int
    registers: int
    least: bool = False

    def text(self) -> str:
        """For people."""
        words = f"{self.cells:,} {CELLS} and {self.registers:,} registers"
        return f"at least {words}" if self.least else words


def learner_entry(shape: Shape, tanh: bool) -> str:
    """The entry of a learner; tanh: of DDPG's actor."""
    return f"engine N={shape.array} P={shape.lanes} ACTOR={int(tanh)}"


def tree_entry(fanout: int, depth: int) -> str:
    """The entry of a sum tree of so many levels."""
    return f"tree K={fanout} D={depth}"


@cache
def golden_table() -> dict[str, Any]:
    """yosys: the version of the wheel. entries: name → [cells, registers]."""
    text = files("pearl_devices.fpga").joinpath("logic.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def logic_of(entry: str) -> Logic | None:
    """An entry of the table; None where it has none."""
    found = golden_table()["entries"].get(entry)
    return Logic(*found) if found else None


def learner_logic(shape: Shape, tanh: bool) -> Logic:
    """Of a learner; of its elements and lanes alone where the table has no entry of the whole."""
    if whole := logic_of(learner_entry(shape, tanh)):
        return whole
    element, lane = logic_of("element"), logic_of("lane")
    assert element
    assert lane
    n, p = shape.array**2, shape.lanes
    cells, registers = (
        n * element.cells + p * lane.cells,
        n * element.registers + p * lane.registers,
    )
    return Logic(cells, registers, least=True)


def tree_logic(fanout: int, depth: int) -> Logic:
    """Of a sum tree; of its lower levels alone where the table has no entry of the whole."""
    for levels in range(depth, 0, -1):
        if found := logic_of(tree_entry(fanout, levels)):
            return found._replace(least=levels < depth)
    return Logic(0, 0, least=True)


def logic_misfit(engines: Sequence[Logic], device: Device, what: str) -> str:
    """Why the logic of engines finds no room; empty where it does, or where the part gives no
    figure of its logic (alms, registers)."""
    least = "at least " if any(e.least for e in engines) else ""
    needs = (
        ("alms", CELLS, sum(e.cells for e in engines)),
        ("registers", "registers", sum(e.registers for e in engines)),
    )
    for figure, words, need in needs:
        limit = device.figures.get(figure)
        if limit is not None and need > limit:
            return f"{what} needs {least}{need:,} {words}, has {limit:,.0f}"
    return ""
