"""A page as one HTML file: no script, no external resource, names escaped, drawings as SVG."""

from __future__ import annotations

from itertools import groupby

from pearl.report.document import Page
from pearl.report.drawings import WIDTH


def page_html(page: Page) -> str:
    """Return a page as HTML text. Facts that follow one another stand in columns."""
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
    groups = groupby(page.blocks, key=lambda block: type(block).__name__)
    return environment.get_template("report.html.j2").render(
        page=page, groups=[(kind, list(blocks)) for kind, blocks in groups], width=WIDTH
    )
