"""Figures that are kept in `tests/report/texts`, name by name, and what is kept of each name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from tests.report import kept_figures
from tests.report.kept_pages import FOLDER

FIGURES = kept_figures.FIGURES
"""File → the figures that it keeps of each of some names."""


def figures_text(file: str) -> str:
    """The figures of all names as JSON, a line an entry."""
    of, names = FIGURES[file]
    found = {k: v for name in names for k, v in of(name).items()}
    whole = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
    return "{\n" + ",\n".join(whole) + "\n}\n"


@cache
def kept(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    return found


def figures(file: str, name: str) -> tuple[Any, Any]:
    """The figures of one name, and those that are kept of it."""
    by_kernel = file in ("counts.json", "estimates.json")
    mine = tuple(kept_figures.kernels_of(name)) if by_kernel else (f"{name}: ",)
    return FIGURES[file][0](name), {k: v for k, v in kept(file).items() if k.startswith(mine)}


def named(files: Iterable[str]) -> list[tuple[str, str]]:
    """Each of these files with each of its names."""
    return [(file, name) for file in files for name in FIGURES[file][1]]
