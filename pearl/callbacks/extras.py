"""Packages that a callback needs and pearl does not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pearl.errors import SpecError


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import and return the module.

    Raises:
        SpecError: it is not installed; the text names the extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{what}: {error}; `pip install 'pearl-toolkit[{extra}]'` installs the package"
        ) from None
