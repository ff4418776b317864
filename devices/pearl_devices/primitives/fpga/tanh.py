"""The table of tanh of the simulated FPGA (`rtl/squash.v`)."""

from __future__ import annotations

import struct
from math import tanh

INTERVALS = 512
"""Number of intervals of the tanh table, 1/64 wide; the last is valid for all larger arguments."""


def tanh_table() -> list[tuple[float, float, float]]:
    """Return (start, slope, value) of each interval, float32: linear between the ends, then 1."""

    def single(x: float) -> float:
        return float(struct.unpack("f", struct.pack("f", x))[0])

    table = [
        (i / 64, single(64 * (tanh((i + 1) / 64) - tanh(i / 64))), single(tanh(i / 64)))
        for i in range(INTERVALS - 1)
    ]
    return [*table, ((INTERVALS - 1) / 64, 0.0, 1.0)]


def tanh_hex() -> str:
    """Return the table in the format of `$readmemh`."""
    return "".join(struct.pack(">3f", *line).hex() + "\n" for line in tanh_table())
