"""Objects that have a page: they show themselves in a notebook, and save in several formats.

A page is drawn in a room above most of these objects, so modules are named, not imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pearl.errors import SpecError
from pearl.files import write_atomically

HTML = "pearl.report.html"


class HasPage:
    """An object with a page of its own.

    PAGE: `module:function`, which takes the object and the date `written` and returns the page; an
        object whose room can make its page overrides `page` instead.
    """

    PAGE: ClassVar[str]

    def page(self, written: str = "") -> Any:
        """Return the page. written: the date, for the footer; empty for none."""
        module, _, name = self.PAGE.partition(":")
        return getattr(import_module(module), name)(self, written=written)

    def to_json(self) -> dict[str, Any]:
        """Return a plain object."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Write the object, completely or not at all: as a page for the suffix .html, else as
        JSON."""
        is_page = Path(path).suffix.lower() == ".html"
        write_atomically(path, (self._html() if is_page else self._json()).encode())

    def _repr_html_(self) -> str:
        return str(import_module(HTML).cell_html(self.page()))

    def _save(self, path: str | Path, what: str, **more: Callable[[], str]) -> None:
        """Write the object whole or not at all, in the format of the suffix.

        what: the object, for the error. more: formats besides html and json → a function that
            returns the text.

        Raises:
            SpecError: another suffix.
        """
        formats = {"html": self._html, "json": self._json, **more}
        suffix = Path(path).suffix.lower()
        if suffix[1:] not in formats:
            raise SpecError(
                f"{what} {path}: suffix {suffix or 'none'!r}; the suffix determines the format, "
                f"allowed are {', '.join(f'.{name}' for name in formats)}"
            )
        write_atomically(path, formats[suffix[1:]]().encode())

    def _html(self) -> str:
        html = import_module(HTML)
        return str(html.page_html(self.page(html.today())))

    def _json(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
