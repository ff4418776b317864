"""Bounds of the period from lanes on which a task fires often and other firings are long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from pearl.graph.cycle_ratio import Arc
from pearl.time_limit import watched

STEPS, SPANS, WIDE = 6, 4, 8
"""Most arcs of a path, most firings of a task that it leads ahead, and most arcs out of its nodes,
for the bound of lanes with long firings between those of a task (assumed: one step of an
environment and its messages)."""


class TimedLanes(Protocol):
    """What these bounds read of a `TimedGraph`."""

    @property
    def names(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def occupancy_s(self) -> tuple[float, ...]: ...
    @property
    def lanes(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def raised_arcs(self) -> tuple[Arc, ...]: ...


def spans_s(timed: TimedLanes) -> Iterator[float]:
    """Yield bounds from lanes on which a task fires often and other firings are long.

    Say that firing i + r of the task starts at least d(i) after firing i, by paths of at most
    STEPS arcs, and that the task itself leaves at most s of any d(i) to others. Every other
    firing of the lane lies in r of these spans. A span that holds some is longer than d(i) by
    at least what each takes beyond s. So the period is at least Σ d(i) / r plus all beyond s.
    """
    out: dict[int, list[tuple[int, float, int]]] = {}
    for members in timed.lanes.values():
        rows: dict[str, list[int]] = {}
        for i in members:
            rows.setdefault(timed.names[i][0], []).append(i)
        longest = {task: max(timed.occupancy_s[i] for i in row) for task, row in rows.items()}
        first, second = sorted([0.0, 0.0, *longest.values()])[:-3:-1]
        for task, row in rows.items():
            others = second if longest[task] == first else first
            if len(row) == 1 or others <= longest[task]:
                continue
            if not out:
                for s, d, w, m in watched(timed.raised_arcs):
                    if m <= 1 and s != d:
                        out.setdefault(s, []).append((d, w, m))
            row.sort(key=lambda i: timed.names[i][1])
            apart: dict[int, dict[int, float]] = {}
            for i in watched(range(len(row))):
                for r, seconds in _spans(row, i, out).items():
                    apart.setdefault(r, {})[i] = seconds
            inside = [timed.occupancy_s[i] for i in members if timed.names[i][0] != task]
            for r, spans in apart.items():
                own = [r * timed.occupancy_s[row[0]]] * len(row)
                least = [max(o, spans.get(i, 0.0)) for i, o in enumerate(own)]
                spare = max(a - b for a, b in zip(least, own, strict=True))
                beyond = math.fsum(max(0.0, s - spare) for s in inside)
                yield math.fsum(least) / r + beyond


def _spans(
    row: list[int], i: int, out: Mapping[int, list[tuple[int, float, int]]]
) -> dict[int, float]:
    """Return how long after firing i of a row, at least, some of the next firings start."""
    place = {node: (k - i) % len(row) or len(row) for k, node in _near(row, i)}
    found: dict[int, float] = {}
    reached = {(row[i], 0): 0.0}
    for _ in range(STEPS):
        further: dict[tuple[int, int], float] = {}
        for (node, tokens), seconds in reached.items():
            arcs = out.get(node, [])
            for d, w, m in arcs if len(arcs) <= WIDE else ():
                if tokens + m > 1:
                    continue
                r = place.get(d)
                if r is None:
                    key = d, tokens + m
                    further[key] = max(further.get(key, 0.0), seconds + w)
                elif tokens + m <= (i + r) // len(row):
                    found[r] = max(found.get(r, 0.0), seconds + w)
        reached = further
    return found


def _near(row: list[int], i: int) -> Iterator[tuple[int, int]]:
    """Yield the places and nodes of the firings of a row after firing i whose spans count."""
    for r in range(1, min(SPANS, len(row)) + 1):
        k = (i + r) % len(row)
        yield k, row[k]
