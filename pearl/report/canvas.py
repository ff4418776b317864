"""A drawing as shapes in user units, before it is written as SVG (`pearl.report.svg`).

A figure is drawn once for each width of a page, WIDE and NARROW, so that its text keeps its size.
Style names are classes of the style sheet: a colour of a device (`d0`, `d1`, `d2`) or of text
(`ink`, `muted`), a tint (`t4` to `t10`, tenths of the colour), or a kind of shape (`line`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

WIDE, NARROW = 808.0, 352.0
"""The two widths of every figure in user units: pixels of a screen and of a phone."""

LETTER = 6.5
"""Width of a letter of chart text in user units, in the widest common system font."""

STRONG, CAPITAL = 7.4, 9.6
"""Widths of a letter and of a capital of bold chart text in user units."""


@dataclass(frozen=True)
class Rect:
    """A rectangle. `radius` rounds its corners; `hint` describes it (`<title>`)."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str = "grid"


@dataclass(frozen=True)
class Path:
    """A path in the syntax of SVG."""

    d: str
    style: str
    hint: str = ""


@dataclass(frozen=True)
class Dot:
    """A circle."""

    x: float
    y: float
    radius: float
    style: str
    hint: str = ""


@dataclass(frozen=True)
class Text:
    """A word. anchor: as in SVG: start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    style: str = "muted"


Shape = Rect | Line | Path | Dot | Text

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge."""


@dataclass
class Canvas:
    """Shapes in the order of painting.

    width, height: in user units; the height grows with the shapes.
    """

    width: float
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)

    @property
    def narrow(self) -> bool:
        """Whether this drawing is for a phone."""
        return self.width < 500

    def _add(self, shape: Shape) -> None:
        """Add a shape, unless one of its numbers is infinite: it has no place then."""
        if all(math.isfinite(n) for n in vars(shape).values() if isinstance(n, float)):
            self.shapes.append(shape)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str,
        *,
        radius: float = 0.0,
        hint: str = "",
    ) -> None:
        self._add(Rect(x, y, max(width, 0.0), height, style, radius, hint))

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> None:
        self._add(Line(x1, y1, x2, y2, style))

    def path(self, d: str, style: str, hint: str = "") -> None:
        self._add(Path(d, style, hint))

    def dot(self, x: float, y: float, radius: float, style: str, hint: str = "") -> None:
        self._add(Dot(x, y, radius, style, hint))

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", style: str = "muted"
    ) -> None:
        self._add(Text(x, y, text, anchor, style))

    def hatch(self, x: float, y: float, width: float, height: float) -> None:
        """Fill the part of a rectangle that is within the canvas with thin diagonal lines:
        waiting."""
        x, end = max(x, 0.0), min(x + width, self.width)
        if not x + 0.5 < end:
            return
        parts = []
        c = math.ceil((x + y) / 6) * 6.0  # lines x + y = c: hatchings of all rectangles align
        while c < end + y + height:
            x1, x2 = max(x, c - y - height), min(end, c - y)
            if x2 - x1 > 0.3:
                parts.append(polyline([(x1, c - x1), (x2, c - x2)]))
            c += 6.0
        self.path("".join(parts), "hatch")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, style: str = "muted") -> None:
        """Draw a thin line with a head at its end."""
        self.line(x1, y1, x2, y2, f"thin {style}")
        self.head(x1, y1, x2, y2, style)

    def head(self, x1: float, y1: float, x2: float, y2: float, style: str = "muted") -> None:
        """Draw the head of an arrow that comes from (x1, y1) and ends at (x2, y2)."""
        length = math.hypot(x2 - x1, y2 - y1)
        if length < 1e-6:
            return
        a, b = (x2 - x1) / length, (y2 - y1) / length
        left = x2 - 6 * a + 2.7 * b, y2 - 6 * b - 2.7 * a
        right = x2 - 6 * a - 2.7 * b, y2 - 6 * b + 2.7 * a
        self.path(f"{polyline([(x2, y2), left, right])}Z", f"fill {style}")

    def whisker(self, low: float, x: float, high: float, y: float, *, hollow: bool = False) -> None:
        """Draw a band with short ends and a dot at the estimate."""
        self.line(low, y, high, y, "ink line")
        for end in (low, high):
            self.line(end, y - 3.5, end, y + 3.5, "ink line")
        self.dot(x, y, 2.6, "hollow" if hollow else "fill ink")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten) that cover most of low to high."""
    span = high - low
    raw = span / about
    if not (0 < raw < math.inf):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def overlap(a: Box, b: Box) -> bool:
    """Return whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def passes(points: Iterable[tuple[float, float]], box: Box) -> int:
    """Return how many of the points of curves are in a box."""
    return sum(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return a line through the finite ones of these points as the path of `Canvas.path`."""
    placed = (point(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
    return "M" + "L".join(placed)


def point(x: float, y: float) -> str:
    """Return a point of `Canvas.path`."""
    return f"{coordinate(x)} {coordinate(y)}"


def coordinate(value: float) -> str:
    """Return a coordinate in tenths of a unit.

    Values that differ only by the order in which floats were added give the same text: since 3.12,
    `sum` of Python adds floats in another way.
    """
    return f"{round(value, 6) + 0.0:.1f}"  # no −0.0


def shorten(text: str, length: int) -> str:
    """Return a text of at most `length` letters."""
    return text if len(text) <= length else text[: max(length - 1, 1)] + "…"


def two_lines(text: str, length: int) -> list[str]:
    """Return a text as at most two lines of `length` letters each, broken at blanks."""
    if len(text) <= length:
        return [text]
    first, *rest = textwrap.wrap(text, max(length, 2))
    return [first, shorten(" ".join(rest), length)] if rest else [first]


def text_width(text: str, *, strong: bool = False) -> float:
    """Return the largest width of a chart text in user units. strong: of bold text."""
    if strong:
        return sum(CAPITAL if letter.isupper() else STRONG for letter in text)
    return LETTER * len(text)
