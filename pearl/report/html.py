"""A page as one HTML file: no script, no external resource, names escaped, drawings as SVG."""

from __future__ import annotations

import functools
from itertools import groupby
from typing import TYPE_CHECKING

from pearl.report.document import Page
from pearl.report.drawings import WIDTH

if TYPE_CHECKING:
    from jinja2 import Template


@functools.cache
def _template() -> Template:
    """Compiled once a process: a run writes its report more than once."""
    from importlib.resources import files

    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def source(name: str) -> str:
        return files("pearl.report").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(source),
    )
    return environment.get_template("report.html.j2")


def page_html(page: Page) -> str:
    """Return a page as HTML text. Facts that follow one another stand in columns."""
    groups = groupby(page.blocks, key=lambda block: type(block).__name__)
    return _template().render(
        page=page, groups=[(kind, list(blocks)) for kind, blocks in groups], width=WIDTH
    )
