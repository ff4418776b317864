"""Readable numbers: three digits, SI prefixes, thousands grouped. For reports only;
`pearl.spec.units` writes numbers that can be read back."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

NONE = "–"
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"
)
_IN_LINES = re.compile(f"(?![\n\t]){_UNPRINTABLE.pattern.removesuffix('+')}")


def printable(text: str) -> str:
    """Return a text on one line, without characters that command a terminal or a page: controls,
    line ends, changes of the direction of writing, and halves of characters. A space replaces
    them."""
    return _UNPRINTABLE.sub(" ", text) if not text.isprintable() else text


def printable_lines(text: str) -> str:
    """Return a text as `printable` does, with its line ends and tabs."""
    return _IN_LINES.sub(" ", text)


PREFIXES = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


def si(value: float | None, unit: str) -> str:
    """Return three significant digits with an SI prefix: `si(3.12e-05, "s")` is `31.2 µs`."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return f"0 {unit}"
    rounded = float(f"{value:.2e}")
    if math.isinf(rounded):  # the largest float, rounded up
        rounded = value
    power = math.floor(math.log10(abs(rounded)) / 3)
    power = max(-4, min(power, 0 if unit == "s" else 4))
    number = rounded / 1000.0**power
    decimals = max(0, 2 - max(0, math.floor(math.log10(abs(number)))))
    return f"{number:,.{decimals}f} {PREFIXES[power]}{unit}"


def band(low: float, high: float, unit: str) -> str:
    """Return both ends with one prefix: `24.0–37.5 µs`."""
    top = si(high, unit)
    number, _, symbol = top.partition(" ")
    if high <= 0 or not math.isfinite(high) or float(number.replace(",", "")) == 0:
        return top
    scale = float(f"{high:.2e}") / float(number.replace(",", ""))
    decimals = len(number.partition(".")[2])
    return f"{low / scale:,.{decimals}f}–{number} {symbol}"


def count(value: float | None) -> str:
    """Return a plain number, grouped by thousands: `25,104`, `3.21`."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def number(value: float) -> str:
    """Return a number like `count`, with a true minus sign."""
    return count(value).replace("-", "−")


def figure(value: float | None, unit: str) -> str:
    """Return a number below a heading that names its unit: a rate without unit, else with it."""
    return si(value, unit) if unit in ("s", "J", "W") else count(value)


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.1f} %"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: `a`, `a and b`, `a, b and c`."""
    names = list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ratio(measured: float | None, predicted: float | None) -> str:
    """Return measured / predicted with two decimals."""
    if measured is None or not predicted:
        return NONE
    return f"{measured / predicted:.2f}"


WORD = "simulated"


def marked(text: str, simulated: Collection[str]) -> str:
    """Return a text in which each sentence about a simulated device has the word `(simulated)`.

    simulated: names of devices. The first mention of the device, of one of its lanes (`fpga.0`) or
    links (`cpu-fpga`) in a sentence is marked. A sentence that has the word stays as it is. Keys
    and values of a command (`limits.pin.learn=fpga`) are not mentions.
    """
    if not simulated:
        return text
    names = "|".join(re.escape(name) for name in sorted(simulated, key=len, reverse=True))
    mention = re.compile(
        rf"(?<![\w.=/-])(?:[\w.]+-)?(?:{names})(?:-[\w.]*\w)?(?:[./]\d+)?(?![\w=]|[-./]\w)(?:'(?!\w))?"
    )
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    return " ".join(
        s if WORD in s else mention.sub(lambda match: f"{match[0]} ({WORD})", s, count=1)
        for s in sentences
    )
