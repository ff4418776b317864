"""Quantities with units: `16 GB/s`, `250 MHz`, `24 GiB` → a number in SI units, and back.

The suffix of a name inside the program gives its dimension (`bytes_per_s`, `w`, …). Prefixes are
those of the SI brochure (k = 1000) and, for bytes and bits, the binary ones of IEC 80000-13 (Ki =
1024).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType

DECIMAL: Mapping[str, float] = MappingProxyType(
    {
        "p": 1e-12,
        "n": 1e-9,
        "u": 1e-6,
        "µ": 1e-6,
        "μ": 1e-6,
        "m": 1e-3,
        "": 1.0,
        "k": 1e3,
        "K": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "P": 1e15,
    }
)
BINARY: Mapping[str, float] = MappingProxyType(
    {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
)


@dataclass(frozen=True)
class Dimension:
    """The physical quantity of a number.

    binary: whether prefixes of 1024 are allowed.
    name: in a sentence. symbols: its units without prefix → SI value; the first is used for
        writing.
    prefixes: allowed prefixes of its units. example: a valid text.
    """

    name: str
    symbols: Mapping[str, float]
    prefixes: str
    example: str
    binary: bool = False

    def factors(self) -> Mapping[str, float]:
        """Map every unit text of this dimension to its value in SI units."""
        scale = {p: DECIMAL[p] for p in (*self.prefixes, "")}
        if self.binary:
            scale |= BINARY
        return {p + s: f * v for s, v in self.symbols.items() for p, f in scale.items()}


BIG, SMALL = "kKMGTP", "pnuµμm"
DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(
    {
        "bytes": Dimension("a size", {"B": 1.0}, BIG, "8 GiB", binary=True),
        "bits": Dimension("a size in bits", {"bit": 1.0}, BIG, "20480 bit", binary=True),
        "bytes_per_s": Dimension("a bandwidth", {"B/s": 1.0}, BIG, "16 GB/s", binary=True),
        "flops_per_s": Dimension("a rate of arithmetic", {"FLOP/s": 1.0}, BIG, "60 TFLOP/s"),
        "per_s": Dimension("a rate", {"/s": 1.0}, "", "5000 /s"),
        "hz": Dimension("a frequency", {"Hz": 1.0}, "kMG", "250 MHz"),
        "s": Dimension("a time", {"s": 1.0, "min": 60.0, "h": 3600.0}, SMALL, "1 ms"),
        "w": Dimension("a power", {"W": 1.0}, "mkM", "350 W"),
        "j_per_byte": Dimension("an energy per byte", {"J/B": 1.0}, SMALL, "60 pJ/B"),
    }
)
"""Suffix of names inside the program → dimension."""

# Only plain seconds take prefixes: "mmin" and "mh" are no units.
_FACTORS: Mapping[str, Mapping[str, float]] = {
    key: {
        unit: value
        for unit, value in dimension.factors().items()
        if not (unit.endswith(("min", "h")) and unit not in dimension.symbols)
    }
    for key, dimension in DIMENSIONS.items()
}
_EXACT = Context(prec=60, traps=[])
_QUANTITY = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(\S.*?)?\s*")


def parse_quantity(given: object, dimension: str) -> float:
    """Parse a quantity: `'16 GB/s'` → 16e9 for dimension `bytes_per_s`."""
    what = DIMENSIONS[dimension]
    hint = f"{what.name} carries its unit, for example {what.example}"
    if isinstance(given, int | float) and not isinstance(given, bool):
        raise ValueError(f"the unit is missing; {hint}")
    if not isinstance(given, str):
        raise ValueError(hint)
    match = _QUANTITY.fullmatch(given) if len(given) <= 60 and given.isprintable() else None
    if match is None:
        raise ValueError(f"not a number with a unit; {hint}")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(f"the unit is missing; {hint}")
    factor = _FACTORS[dimension].get(unit)
    if factor is None:
        like = [u for u in _FACTORS[dimension] if u.lower() == unit.lower()]
        nearest = f" (did you mean {like[0]}?)" if like else ""
        raise ValueError(f"{unit!r} is no unit of {what.name.split(' ', 1)[1]}{nearest}; {hint}")
    # Decimal arithmetic, so that 5 us is the float nearest to 5e-6; overflow gives infinity.
    value = float(_EXACT.multiply(Decimal(number), Decimal(repr(factor))))
    if not math.isfinite(value):
        raise ValueError(f"too large; {hint}")
    return value


def format_quantity(value: float, dimension: str) -> str:
    """Write a quantity: `16e9` → `'16000000000 B/s'`, the shortest text that reads as `value`."""
    number = str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)
    return f"{number} {next(iter(DIMENSIONS[dimension].symbols))}"


def dimension_of(name: str) -> str | None:
    """Return the dimension of a name's suffix: `clock_hz` → `hz`; None for a plain
    count.
    """
    fits = [key for key in DIMENSIONS if name == key or name.endswith("_" + key)]
    return max(fits, key=len) if fits else None
