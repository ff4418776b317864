"""Results of seeded computations, compared with those in a file; `pytest --write` rewrites them.

Each result is a function of its case: searches end by counts of steps. Oracles that hold for any
case stand in the tests of the modules; these cases see each line that changes a result.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.testing.graphs import random_limited

Case = Callable[[], Any]
LONGEST = 16
"""Numbers of a kept list. Of a longer list, its count, two sums and a checksum of its texts are
kept. The sums are those of asinh(1e9 x), so that small numbers count like large ones."""


def to_json(found: Any) -> Any:
    """Return a result as nested lists of numbers and texts. Infinite numbers become texts."""
    if isinstance(found, np.ndarray | np.generic):
        found = found.tolist()
    if isinstance(found, Mapping):
        return [[to_json(k), to_json(v)] for k, v in found.items()]
    if isinstance(found, set | frozenset):
        return [to_json(f) for f in sorted(found)]
    if isinstance(found, list | tuple):
        return [to_json(f) for f in found]
    if isinstance(found, float):
        return found if math.isfinite(found) else str(found)
    return found if isinstance(found, int | str) or found is None else str(found)


def folded(rows: Any) -> Any:
    flat = _flat(rows)
    numbers = [math.asinh(1e9 * f) for f in flat if not isinstance(f, str) and f is not None]
    if len(flat) <= LONGEST:
        return rows
    text = "|".join(str(f) for f in flat if isinstance(f, str) or f is None)
    sums = math.fsum(numbers), math.fsum((1 + k % 97) * n for k, n in enumerate(numbers))
    return [len(numbers), *sums, zlib.crc32(text.encode())]


def _flat(rows: Any) -> list[Any]:
    return [f for r in rows for f in _flat(r)] if isinstance(rows, list) else [rows]


def _label(given: Any) -> str:
    parts = given if isinstance(given, tuple) else () if given is None else (given,)
    return "-".join(getattr(p, "__name__", str(p)).split(".")[-1] for p in parts)


class Kept:
    """Cases by name, and the file of their results."""

    def __init__(self, file: str) -> None:
        self.file, self.cases = Path(__file__).with_name(file), dict[str, Case]()

    def case(self, *given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function as a case, or one case for each of the given arguments."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            for g in given or (None,):
                name = f"{function.__name__} {_label(g)}".strip()
                self.cases[name] = function if g is None else lambda g=g: function(g)
            return function

        return add

    def check(self, name: str, write: bool) -> None:
        results = json.loads(self.file.read_text()) if self.file.exists() else {}
        parts = to_json(self.cases[name]())
        found = [folded(part) for part in parts] if len(_flat(parts)) > LONGEST else parts
        if write:
            results = {n: results[n] for n in self.cases if n in results} | {name: found}
            rows = ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in results.items())
            self.file.write_text("{\n" + rows + "\n}\n")
        same(found, results[name], name)


def rounded(value: float) -> float:
    """Return a value of a linear program, which is exact to its tolerance."""
    return float(f"{value:.6g}")


def same(found: Any, kept: Any, at: str) -> None:
    """Compare two results: texts and whole numbers exactly, other numbers to 1e-10."""
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        for k, (f, e) in enumerate(zip(found, kept, strict=True)):
            same(f, e, f"{at}[{k}]")
    elif isinstance(found, float) and isinstance(kept, int | float):
        assert found == pytest.approx(kept, rel=1e-10, abs=1e-18), at
    else:
        assert found == kept, at


PAYERS = ("lane", "link", "nobody")


def spaces_of(seed: int, **sizes: Any) -> list[SearchSpace]:
    """Return the search spaces of a small random problem whose links have payers of all kinds."""
    try:
        return search_spaces(mixed(seed, **sizes))
    except InfeasibleError:
        return []


def mixed(seed: int, **sizes: Any) -> Problem:
    from dataclasses import replace

    graph, costs, limits = random_limited(seed, **sizes)
    links = [replace(k, paid_by=PAYERS[(seed + i) % 3]) for i, k in enumerate(costs.platform.links)]
    platform = replace(costs.platform, links=tuple(links))
    return Problem(graph, replace(costs, platform=platform), limits)


class Clock:
    """A clock that advances by `step_s`, a power of two, at each look. It starts at a whole second,
    so that differences are exact; of real clocks, a deadline of it is far ahead."""

    def __init__(self, step_s: float = 1024.0) -> None:
        self.start_s = self.now_s = float(math.ceil(time.monotonic()))
        self.step_s = step_s

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s
