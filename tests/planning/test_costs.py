"""The table of modes: what a call carries to and from other lanes."""

from __future__ import annotations

import pytest

from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import _carried_bytes
from pearl.testing.graphs import mode
from pearl_devices import Kernel


@pytest.mark.parametrize(
    ("tasks", "nbytes"),
    [
        (("a",), 10 + 8 / 2),  # a firing: what it sends to b, and half of what c sends
        (("b",), 10 + 6),
        (("c",), 2 * 6 + 8),
        (("a", "b"), 2 * (8 / 2 + 6)),  # a call: all firings of an iteration, and not a's to b
    ],
)
def test_a_call_carries_what_crosses_its_edge_once_a_firing(
    tasks: tuple[str, ...], nbytes: float
) -> None:
    edges = (
        Edge("a", "b", bytes=10.0),
        Edge("b", "c", 1, 2, bytes=6.0),
        Edge("c", "a", 2, 1, tokens_seq=2, bytes=8.0),
    )
    graph = TaskGraph("rates", tuple(Task(n, Kernel(n)) for n in "abc"), edges)
    assert graph.repetition == {"a": 2, "b": 2, "c": 1}
    assert _carried_bytes(mode(tasks, "cpu", 1.0), graph) == pytest.approx(nbytes)
