"""Registers and logic cells of the engines, from a table of yosys' synthesis results.

`synthesis` makes the table, `logic.json`. An entry excludes float32 blocks and memories, which
`resources` counts exactly. A delay line counts as registers, an upper estimate: tools may put it
into memory. Cells are Intel's adaptive logic modules.
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
"""Fan-out of a sum tree that plans choose from → its largest number of levels: 2^24 leaves, more
than the memory of any FPGA in the catalogue holds."""


class Logic(NamedTuple):
    """Logic of an engine.

    cells: number of adaptive logic modules.
    registers: number of flip-flops.
    least: the numbers are lower bounds, because the table has only parts of the engine.
    """

    cells: int
    registers: int
    least: bool = False

    def text(self) -> str:
        """For people."""
        words = f"{self.cells:,} {CELLS} and {self.registers:,} registers"
        return f"at least {words}" if self.least else words


def learner_entry(shape: Shape, tanh: bool) -> str:
    """Return the name of a learner's entry. tanh: whether the learner has DDPG's actor."""
    return f"engine N={shape.array} P={shape.lanes} ACTOR={int(tanh)}"


def tree_entry(fanout: int, depth: int) -> str:
    """Return the name of a sum tree's entry. depth: levels below the root."""
    return f"tree K={fanout} D={depth}"


@cache
def golden_table() -> dict[str, Any]:
    """Return the stored table. yosys: version of the wheel. entries: name → [cells, registers]."""
    text = files("pearl_devices.fpga").joinpath("logic.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def logic_of(entry: str) -> Logic | None:
    """Return an entry of the table, or None."""
    found = golden_table()["entries"].get(entry)
    return Logic(*found) if found else None


def learner_logic(shape: Shape, tanh: bool) -> Logic:
    """Return the logic of a learner; if the table lacks it, of its elements and lanes only."""
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
    """Return the logic of a sum tree; if the table lacks it, of its lower levels only."""
    for levels in range(depth, 0, -1):
        if found := logic_of(tree_entry(fanout, levels)):
            return found._replace(least=levels < depth)
    return Logic(0, 0, least=True)


def logic_misfit(engines: Sequence[Logic], device: Device, what: str) -> str:
    """Return why the logic of engines does not fit; empty if it fits, or if the device has no
    figures of logic (alms, registers)."""
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
