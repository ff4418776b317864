"""A page as one HTML file: no script, no external resource, names escaped, figures as SVG."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from pearl.formatting import printable
from pearl.report.canvas import Canvas
from pearl.report.document import Card, Drawing, KeyFigure, Page
from pearl.report.svg import canvas_svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def today() -> str:
    """Return today's date in the format of pages: `25 Nov 2026`."""
    now = time.localtime()
    return f"{now.tm_mday} {time.strftime('%b %Y', now)}"


def page_html(page: Page) -> str:
    """Return a page as the text of an HTML file."""
    return _environment().get_template("report.html.j2").render(page=page, whole=True, svg=_both)


def cell_html(page: Page) -> str:
    """Return the short form of a page for a notebook: lead, key figures and the first figures."""
    template = _environment().from_string(
        '{% include "style.html.j2" %}<div class="pearl cell">{% include "body.html.j2" %}</div>'
    )
    return template.render(page=page, whole=False, svg=_wide)


@cache
def _environment() -> Environment:
    from importlib.resources import files

    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def source(name: str) -> str:
        return files("pearl.report").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(source),
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.globals["whisker"] = _whisker
    environment.filters["code"] = _code
    return environment


def _code(text: str) -> Markup:
    """Return an escaped text in which words between backticks are code."""
    from markupsafe import Markup, escape

    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # a name has a backtick
        return escape(printable(text))
    joined = Markup("")
    for n, part in enumerate(parts):
        joined += Markup("<code>{}</code>").format(part) if n % 2 else escape(part)
    return joined


def _both(figure: Drawing | Card) -> Markup:
    """Return a figure for screens and for phones; the style sheet shows one of them."""
    from markupsafe import Markup

    assert figure.draw is not None
    if isinstance(figure, Card):
        return Markup(canvas_svg(figure.draw(352.0), figure.sentence))
    wide, narrow = figure.canvases
    return Markup(canvas_svg(wide, figure.sentence, "w") + canvas_svg(narrow, figure.sentence, "n"))


def _wide(figure: Drawing | Card) -> Markup:
    """Return a figure for screens only."""
    from markupsafe import Markup

    assert figure.draw is not None
    return Markup(canvas_svg(figure.draw(808.0), figure.sentence))


def _whisker(figure: KeyFigure) -> Markup:
    """Return the band of a key figure on a scale from zero."""
    from markupsafe import Markup

    assert figure.band is not None
    low, value, high = figure.band
    c = Canvas(130.0, 14.0)
    scale = 120 / high if high > 0 else 0.0
    c.whisker(4 + low * scale, 4 + value * scale, 4 + high * scale, 7)
    sentence = f"{figure.label}: {figure.value} {figure.unit}, {figure.note}"
    return Markup(canvas_svg(c, sentence))
