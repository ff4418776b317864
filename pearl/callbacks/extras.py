"""Packages that a callback needs and pearl does not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pearl.errors import SpecError
from pearl_devices.extras import CPU_TORCH, install_hint


def _torch(module: str) -> str:
    return f", and torch with {CPU_TORCH}" if module.startswith("torch") else ""


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import and return the module.

    Raises:
        SpecError: it is not installed; the text names the extra that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise SpecError(
            f"{what}: {error}; the package comes with {install_hint(extra)}{_torch(module)}"
        ) from None
