"""Sources of the repository, each read, parsed and searched once by the tests of its structure."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, outer ones first."""
    return tuple(ast.walk(parsed(file)))


@cache
def imports(file: Path, *, for_types: bool = False) -> frozenset[str]:
    """List the dotted names that a file imports, inside functions too.

    for_types: whether names under `if TYPE_CHECKING` are among them.
    """
    checking = {
        id(inner)
        for node in nodes(file)
        if not for_types
        and isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = set()
    for node in nodes(file):
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def attributes(file: Path, owner: str) -> frozenset[str]:
    """Names that a file asks `owner` for, as in `owner.name`."""
    return frozenset(
        node.attr
        for node in nodes(file)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )
