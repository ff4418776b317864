"""Self-timed execution over arrays of arcs, in Python over lists or compiled by numba."""

from __future__ import annotations

from typing import Any


def fire(
    begin: int,
    end: int,
    shift: Any,
    order: Any,
    first: Any,
    sources: Any,
    seconds: Any,
    tokens: Any,
    factors: Any,
    start: Any,
) -> None:
    """Write the start times of the firings of some turns.

    Arguments:
        begin, end: the turns. In turn t, node j begins its iteration t + shift[j].
        order: the nodes in the order of a turn.
        first: node → its first arc; last, the number of arcs.
        sources, seconds, tokens: of each arc, sorted by the node it enters.
        factors: (iterations, nodes), which multiply the seconds of the arcs that leave a node.
        start: (iterations, nodes) → seconds; zeros where no firing has begun.
    """
    for turn in range(begin, end):
        for j in order:
            k = turn + shift[j]
            if k < 0 or k >= len(start):
                continue
            ready = 0.0
            for a in range(first[j], first[j + 1]):
                before = k - tokens[a]
                if before >= 0 and before < len(start):
                    i = sources[a]
                    ready = max(ready, start[before][i] + seconds[a] * factors[before][i])
            start[k][j] = ready
