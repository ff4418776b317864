"""Edges of a graph and channels of a plan by key, which distinguishes parallel edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar

EdgeKey = tuple[str, str, int]
"""src, dst, and the number of the edge among parallel edges: 0, 1, … in the given order."""


class Between(Protocol):
    """An edge of a graph, or its channel in a plan."""

    @property
    def src(self) -> str: ...

    @property
    def dst(self) -> str: ...


E = TypeVar("E", bound=Between)


def key_edges(edges: Iterable[E]) -> dict[EdgeKey, E]:
    """Return the edges by their keys, in order."""
    count: Counter[tuple[str, str]] = Counter()
    by_key: dict[EdgeKey, E] = {}
    for e in edges:
        by_key[e.src, e.dst, count[e.src, e.dst]] = e
        count[e.src, e.dst] += 1
    return by_key
