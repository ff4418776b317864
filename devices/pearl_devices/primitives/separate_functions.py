"""The separate functions of this process, which compiled code calls by symbol."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

Need = tuple[str, str, tuple[Any, ...]]
"""A separate function: its module and name, and the types of its arguments."""

separate: dict[str, Need] = {}
"""Symbol → separate function, of those compiled or loaded in this process."""


def needs(module: Any) -> dict[str, Need]:
    """Return the separate functions that the code of a module calls, by symbol."""
    declared = (f.name for f in module.functions if f.is_declaration)
    return {name: separate[name] for name in declared if name in separate}


def provide(needed: Mapping[str, Need]) -> None:
    """Compile or load these functions, so that this process has their machine code.

    Raises:
        LookupError: a function has another symbol now.
    """
    for symbol, (module, name, kinds) in needed.items():
        getattr(import_module(module), name).compile(kinds)
        if symbol not in separate:
            raise LookupError(symbol)
