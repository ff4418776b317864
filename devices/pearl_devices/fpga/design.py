"""`Design`: an engine as files for an FPGA tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
