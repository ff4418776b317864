"""The balance equations of synchronous dataflow (Lee and Messerschmitt 1987)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from pearl.errors import SpecError
from pearl.graph.parts import Edge


def firings_of(
    graph: str, touching: Mapping[str, Sequence[Edge]], edges: Sequence[Edge]
) -> dict[str, int]:
    """Return task → firings in one iteration, the least positive solution of each connected
    component.

    graph: its name, for messages. touching: task → the edges into and out of it, without
        self-loops.

    Raises:
        SpecError: rates disagree; the text names a cycle of edges.
    """
    for e in edges:
        if e.src == e.dst and e.production != e.consumption:
            raise SpecError(
                f"edge {e.src} → {e.dst}: a self-loop produces {e.production} and consumes "
                f"{e.consumption} a firing; they must be equal"
            )
    rate: dict[str, Fraction] = {}
    for root in touching:
        if root in rate:
            continue
        rate[root] = Fraction(1)
        queue, parent = [root], {root: ""}
        while queue:
            here = queue.pop()
            for e in touching[here]:
                there = e.dst if here == e.src else e.src
                ratio = Fraction(e.production, e.consumption)
                implied = rate[here] * (ratio if here == e.src else 1 / ratio)
                if there not in rate:
                    rate[there], parent[there] = implied, here
                    queue.append(there)
                elif rate[there] != implied:
                    raise SpecError(_disagreement(graph, parent, here, there))
        scale = math.lcm(*(rate[n].denominator for n in parent))
        common = math.gcd(*(int(rate[n] * scale) for n in parent))
        for n in parent:
            rate[n] = rate[n] * scale / common
    return {task: int(rate[task]) for task in touching}


def _disagreement(graph: str, parent: Mapping[str, str], a: str, b: str) -> str:
    def up(n: str) -> list[str]:
        path = [n]
        while parent[path[-1]]:
            path.append(parent[path[-1]])
        return path

    left, right = up(a), up(b)
    meet = next(n for n in left if n in right)
    around = [*left[: left.index(meet) + 1][::-1], *right[: right.index(meet)], meet]
    return (
        f"graph {graph!r}: rates disagree around the cycle {' – '.join(around)}; "
        "production · firings of the source must equal consumption · firings of the "
        "destination on every edge, else tokens pile up or run out"
    )
