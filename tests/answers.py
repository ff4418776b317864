"""Tables of expressions and their answers: an expression a line, its answer indented below.

An answer is the value, or the problems of an error. The file begins with the imports. `pytest
--write` writes the answers anew; read the change, because an answer must be right and not the same.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from pearl.errors import InfeasibleError, SpecError


def answer(expression: str, names: dict[str, Any]) -> list[str]:
    try:
        value = eval(expression, dict(names))
    except InfeasibleError as error:
        entries = [" ".join(f"{v:.9g}" if isinstance(v, float) else str(v) for v in e.values())
                   for e in error.conflict]  # fmt: skip
        return [f"infeasible: {error}", *(f"conflict: {entry}" for entry in entries)]
    except SpecError as error:
        return [f"refused: {problem}" for problem in error.problems]
    except (KeyError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    return str(value).splitlines()


NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def settled(found: str, kept: str) -> str:
    """Return a text with the numbers of the kept one in place of its own where they differ by
    1e-8 at most, because other processors round the last digits of a sum differently."""
    parts, expected = NUMBER.split(found), NUMBER.split(kept)
    if len(parts) != len(expected):
        return found
    for k in range(1, len(parts), 2):
        # A ninth digit that is rounded the other way is 1e-8 by itself.
        if math.isclose(float(parts[k]), float(expected[k]), rel_tol=1.1e-8, abs_tol=1e-15):
            parts[k] = expected[k]
    return "".join(parts)


def titles(file: Path) -> list[str]:
    """Return the first lines of the tables of a file, which begin with #."""
    return [line for line in file.read_text().splitlines() if line.startswith("#")]


def check(file: Path, title: str, names: dict[str, Any], *, write: bool) -> None:
    """Compare the answers of a table with those of its expressions."""
    whole = file.read_text()
    imports, *tables = whole.split("\n# ")
    names = dict(names)
    exec(imports, names)
    (table,) = (each.splitlines() for each in tables if f"# {each}".startswith(f"{title}\n"))
    told = [table[0]]
    for line in table[1:]:
        if not line.startswith("    "):
            told += [line, *(f"    {each}" for each in (answer(line, names) if line else ()))]
    if write:
        file.write_text(whole.replace("\n".join(table), "\n".join(told)))
    assert settled("\n".join(told), "\n".join(table)).splitlines() == table
