"""Disjoint chains and rings of the classes of a search space: neighbours exchange messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pearl.graph.cycle_ratio import howard
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import watched

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 8
"""Largest number of cycles that become chains and rings (assumed)."""


@dataclass
class Chain:
    """A chain or ring of classes: row k is class classes[k], and its next neighbour is row k + 1.

    count_*, bytes_*: (rows,), messages and bytes per iteration between neighbours, both directions.
    """

    classes: Ints
    ring: bool
    count_to: Floats = field(init=False)
    bytes_to: Floats = field(init=False)
    count_from: Floats = field(init=False)
    bytes_from: Floats = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.classes)
        self.count_to, self.bytes_to = np.zeros(n), np.zeros(n)
        self.count_from, self.bytes_from = np.zeros(n), np.zeros(n)


def chains_of(space: SearchSpace, class_of: Ints, least: Floats) -> list[Chain]:
    """Return disjoint chains and rings that contain each class once.

    They follow cycles of the largest ratio with the least latencies first, then edges of many
    bytes.
    """
    x = space.expansion
    n = len(space.classes)
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    used: set[int] = set()
    rings: list[Chain] = []
    arcs = [
        (int(class_of[x.nodes[s][0]]), int(class_of[x.nodes[d][0]]), s, d, m)
        for s, d, m, _ in watched(x.arcs)
    ]
    for _ in range(ROUNDS):
        open_arcs = [
            (s, d, float(least[x.nodes[s][0]]), m)
            for a, b, s, d, m in arcs
            if s != d and a not in used and b not in used
        ]
        _, nodes = howard(len(x.nodes), open_arcs)
        if not nodes:
            break
        walk = [int(class_of[x.nodes[i][0]]) for i in nodes]
        used.update(walk)
        path, ring = _unrolled(walk)
        if ring:
            rings.append(Chain(np.array(path, np.int64), True))
        else:
            used.update(path)
            for a, b in pairwise(path):
                after[a], before[b] = b, a
    closed = {int(c) for chain in rings for c in chain.classes}
    group = list(range(n))

    def root(c: int) -> int:
        while group[c] != c:
            group[c] = group[group[c]]
            c = group[c]
        return c

    for a, b in after.items():
        group[root(a)] = root(b)
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    for e in sorted(x.graph.edges, key=lambda e: -e.bytes):
        a, b = int(class_of[unit[e.src]]), int(class_of[unit[e.dst]])
        if a in closed or b in closed or a in after or b in before or root(a) == root(b):
            continue
        after[a], before[b] = b, a
        group[root(a)] = root(b)
    return [*rings, *_opened(n, after, before, closed)]


def _opened(
    n: int, after: dict[int, int], before: dict[int, int], closed: set[int]
) -> Iterator[Chain]:
    for c in range(n):
        if c not in before and c not in closed:
            row = [c]
            while row[-1] in after:
                row.append(after[row[-1]])
            yield Chain(np.array(row, np.int64), False)


def _unrolled(walk: Sequence[int]) -> tuple[list[int], bool]:
    """Return the classes of a closed walk as a row, and whether they form a ring.

    A walk that is neither a ring nor a row traversed in both directions loses some classes.
    """
    steps = [c for i, c in enumerate(walk) if c != walk[i - 1]] or [walk[0]]
    if len(steps) == len(set(steps)):
        return steps, len(steps) > 2
    ends = [i for i in range(len(steps)) if steps[i - 1] == steps[(i + 1) % len(steps)]]
    begin = ends[0] if ends else 0
    row = [*steps[begin:], *steps[:begin]]
    path = list(dict.fromkeys(row))
    joined = {frozenset(p) for p in zip(row, [*row[1:], row[0]], strict=True)}
    kept = [path[0]]
    for c in path[1:]:
        if frozenset((kept[-1], c)) not in joined:
            break
        kept.append(c)
    return kept, False
