"""A canvas as SVG text: names are escaped; there are no scripts, references or identifiers."""

from __future__ import annotations

from html import escape

from pearl.formatting import printable
from pearl.report.canvas import Canvas, Dot, Line, Path, Rect, Shape, coordinate


def canvas_svg(canvas: Canvas, sentence: str, role: str = "") -> str:
    """Return an `<svg>` of a canvas.

    sentence: what the drawing shows, for readers who do not see it.
    role: class of the element, with which a page selects the width.
    """
    size = f'viewBox="0 0 {_n(canvas.width)} {_n(canvas.height)}" width="{_n(canvas.width)}"'
    shapes = "".join(map(_shape, canvas.shapes))
    label = escape(printable(sentence), quote=True)
    return f'<svg class="{role}" {size} role="img" aria-label="{label}">{shapes}</svg>\n'


def _n(value: float) -> str:
    """Return a coordinate; a whole one without decimals."""
    return coordinate(value).removesuffix(".0")


def _shape(s: Shape) -> str:
    if isinstance(s, Rect):
        rounded = f' rx="{_n(s.radius)}"' if s.radius else ""
        place = f'x="{_n(s.x)}" y="{_n(s.y)}" width="{_n(s.width)}" height="{_n(s.height)}"'
        return _closed("rect", f'class="{s.style}" {place}{rounded}', s.hint)
    if isinstance(s, Line):
        ends = f'x1="{_n(s.x1)}" y1="{_n(s.y1)}" x2="{_n(s.x2)}" y2="{_n(s.y2)}"'
        return f'<line class="{s.style}" {ends}/>'
    if isinstance(s, Path):
        return _closed("path", f'class="{s.style}" d="{s.d}"', s.hint)
    if isinstance(s, Dot):
        place = f'cx="{_n(s.x)}" cy="{_n(s.y)}" r="{_n(s.radius)}"'
        return _closed("circle", f'class="{s.style}" {place}', s.hint)
    anchor = "" if s.anchor == "start" else f' text-anchor="{s.anchor}"'
    place = f'x="{_n(s.x)}" y="{_n(s.y)}"'
    return f'<text class="{s.style}" {place}{anchor}>{escape(printable(s.text))}</text>'


def _closed(tag: str, attributes: str, hint: str) -> str:
    if not hint:
        return f"<{tag} {attributes}/>"
    return f"<{tag} {attributes}><title>{escape(printable(hint))}</title></{tag}>"
