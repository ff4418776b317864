"""Objects that have a page: they show themselves in a notebook and save as HTML.

A page is made in a room above the objects, so they name the function that makes it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import ClassVar, cast


class HasPage:
    """An object with a page of its own.

    PAGE: `module:function`; the function takes the object and whether the page is a whole file or
        the short form for a notebook, and returns HTML.
    """

    PAGE: ClassVar[str]

    def _html(self, *, whole: bool) -> str:
        module, _, name = self.PAGE.partition(":")
        return cast("str", getattr(import_module(module), name)(self, whole=whole))

    def _repr_html_(self) -> str:
        return self._html(whole=False)

    def _save_html(self, path: str | Path) -> bool:
        """Write the page if the suffix is .html; return whether it was."""
        from pearl.files import write_atomically

        if Path(path).suffix.lower() != ".html":
            return False
        write_atomically(path, self._html(whole=True).encode())
        return True
