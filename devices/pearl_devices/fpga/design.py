"""`Design`: an engine as files to take to a tool of hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Design:
    """An engine in Verilog.

    name: such as array32, or tree16 for a sum tree of fan-out 16.
    cycles: of one firing: a gradient step, or the draws of a batch.
    blocks: DSP blocks.
    files: name → content.
    """

    name: str
    cycles: int
    blocks: int
    files: Mapping[str, str]
