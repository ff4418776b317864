"""The sequential program of a graph: which task can fire when, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph


def program_order(graph: TaskGraph) -> tuple[str, ...]:
    """Return the firings of one iteration in the order of the sequential program. The next firing
    is always that of the first task, in the graph's order, that can fire.

    Raises:
        SpecError: no task can fire before the iteration ends.
    """
    tokens = [e.tokens for e in graph.edges]
    left = dict(graph.repetition)
    order: list[str] = []
    while any(left.values()):
        able = (n for n, count in left.items() if count and not blocking_reason(graph, tokens, n))
        name = next(able, None)
        if name is None:
            raise SpecError(
                f"graph {graph.name!r}: no task can fire after {order}; firings left are {left}"
            )
        fire(graph, tokens, name)
        left[name] -= 1
        order.append(name)
    return tuple(order)


def blocking_reason(graph: TaskGraph, tokens: Sequence[int], name: str) -> str | None:
    """Return why `name` cannot fire now, or None. A data channel has the least capacity that its
    rates
    allow: one slot if a firing produces as much as a firing consumes."""
    for e, available in zip(graph.edges, tokens, strict=True):
        if e.dst == name and available < e.consumption:
            return f"{e.src} has not given it what it needs"
        if e.src == name and e.is_channel and available + e.production > e.least_capacity:
            return f"{e.dst} has not yet read what it gave before"
    return None


def fire(graph: TaskGraph, tokens: list[int], name: str) -> None:
    """Take the tokens that a firing consumes from `tokens` (one number per edge); add its
    output."""
    for i, e in enumerate(graph.edges):
        tokens[i] += (e.production if e.src == name else 0) - (
            e.consumption if e.dst == name else 0
        )
