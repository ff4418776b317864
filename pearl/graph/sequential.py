"""The sequential program of a graph: which task can fire when, one at a time."""

from __future__ import annotations

from collections.abc import Mapping

from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph


def program_order(graph: TaskGraph) -> tuple[str, ...]:
    """Return the firings of one iteration in the order of the sequential program. The next firing
    is always that of the first task, in the graph's order, that can fire.

    Raises:
        SpecError: no task can fire before the iteration ends.
    """
    fired = dict.fromkeys(graph.repetition, 0)
    left = dict(graph.repetition)
    order: list[str] = []
    while any(left.values()):
        able = (n for n, count in left.items() if count and not blocking_reason(graph, fired, n))
        name = next(able, None)
        if name is None:
            raise SpecError(
                f"graph {graph.name!r}: no task can fire after {order}; firings left are {left}"
            )
        fired[name] += 1
        left[name] -= 1
        order.append(name)
    return tuple(order)


def blocking_reason(graph: TaskGraph, fired: Mapping[str, int], name: str) -> str | None:
    """Return why `name` cannot fire now, or None. A data channel has the least capacity that its
    rates allow: one slot if a firing produces as much as a firing consumes.

    fired: task → its firings so far.
    """
    for e in graph.edges:
        given = e.tokens + fired[e.src] * e.production
        if e.dst == name and given < e.tokens_needed(fired[name], graph.repetition[name]):
            return f"{e.src} has not produced enough tokens for it"
        taken = fired[e.dst] * e.consumption
        if e.src == name and e.is_channel and given - taken + e.production > e.least_capacity:
            return f"{e.dst} has not yet read its earlier tokens"
    return None
