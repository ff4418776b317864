"""The reach of an edge: what a firing waits for, what is refused, and what stays alive."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pearl.graph.period import expand
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import Edge, Task, TaskGraph


def rollout(steps: int, reach: int | None, **more: Any) -> TaskGraph:
    """Task a stores `steps` times an iteration, b reads, c begins the next iteration."""
    edges = (
        Edge("a", "b", reach=reach, **more),
        Edge("b", "c", 1, steps),
        Edge("c", "a", steps, 1, steps),
        *(Edge(t, t, tokens_seq=1) for t in "abc"),
    )
    return TaskGraph("g", tuple(Task(t) for t in "abc"), edges)


@given(st.integers(2, 7), st.integers(0, 7) | st.none())
def test_a_firing_waits_for_its_window_and_for_nothing_else(steps: int, reach: int | None) -> None:
    reach = None if reach is None else min(reach, steps)
    graph = rollout(steps, reach)
    expansion = expand(graph)
    last = [steps - 1 if reach is None else min(t + reach, steps - 1) for t in range(steps)]
    node = expansion.node
    waits = {(s, d, m) for s, d, m, edge in expansion.arcs if edge == 0}
    assert waits == {(node["a", last[t]], node["b", t], 0) for t in range(steps)}
    order = program_order(graph)
    for t in range(steps):
        at = [i for i, name in enumerate(order) if name == "b"][t]
        assert order[:at].count("a") > last[t]
