"""Registers and logic cells of the engines, from a table of yosys' synthesis results.

`synthesis` makes the table, `logic.json`. An entry excludes float32 blocks and memories, which
`resources` counts exactly. A delay line counts as registers, an upper estimate: tools may put it
into memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from pearl_devices.base import Device
from pearl_devices.fpga.program import LATENCY, Shape

WORDS = {"alms": "adaptive logic modules", "registers": "registers"}
"""Figure of a device, and field of `Logic` → its words."""

DEEPEST = {4: 6, 8: 7, 16: 6}
"""Fan-out of a sum tree that plans choose from → its largest number of levels: 2^24 leaves, more
than the memory of any FPGA in the catalogue holds."""


class Logic(NamedTuple):
    """Logic of an engine.

    alms: number of adaptive logic modules, the cells of Intel.
    registers: number of flip-flops.
    """

    alms: int
    registers: int

    def text(self) -> str:
        """For people."""
        return f"{self.alms:,} adaptive logic modules and {self.registers:,} registers"


def learner_entry(shape: Shape, tanh: bool) -> str:
    """Return the name of a learner's entry. tanh: whether the learner has DDPG's actor."""
    return f"engine N={shape.array} P={shape.lanes} ACTOR={int(tanh)}"


def tree_entry(fanout: int, depth: int) -> str:
    """Return the name of a sum tree's entry. depth: levels below the root."""
    return f"tree K={fanout} D={depth}"


@cache
def golden_table() -> dict[str, Any]:
    """Return the stored table. yosys: version of the wheel. entries: name → fields of `Logic`."""
    text = files("pearl_devices.fpga").joinpath("logic.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def logic_of(entry: str) -> Logic | None:
    """Return an entry of the table, or None."""
    found = golden_table()["entries"].get(entry)
    return Logic(*found) if found else None


def learner_logic(shape: Shape, tanh: bool) -> Logic | None:
    """Return the logic of a learner. The table has only learners of the usual latency."""
    return logic_of(learner_entry(shape, tanh)) if shape.latency == LATENCY else None


def logic_misfit(engines: Sequence[Logic | None], device: Device, what: str) -> str:
    """Return why the logic of engines does not fit; empty if it fits, or if the device has no
    figures of logic (alms, registers). Engines that the table lacks are not counted."""
    known = [engine for engine in engines if engine]
    least = "at least " if len(known) < len(engines) else ""
    for figure, words in WORDS.items():
        need, limit = sum(getattr(e, figure) for e in known), device.figures.get(figure)
        if limit is not None and need > limit:
            return f"{what} needs {least}{need:,} {words}, has {limit:,.0f}"
    return ""
