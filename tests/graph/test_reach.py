"""The reach of an edge: what a firing waits for, what is refused, and what stays alive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.errors import SpecError
from pearl.graph.liveness import live_rows
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


@given(st.integers(2, 6), st.integers(0, 6), st.integers(0, 20))
def test_the_tokens_that_are_needed_are_those_of_all_iterations_before_and_of_the_window(
    steps: int, reach: int, firing: int
) -> None:
    edge = Edge("a", "b", reach=reach)
    iteration, t = divmod(firing, steps)
    needed = iteration * steps + min(t + reach, steps - 1) + 1
    assert edge.tokens_needed(firing, steps) == needed
    whole = Edge("a", "b", reach=None)
    assert whole.tokens_needed(firing, steps) == (iteration + 1) * steps


REFUSED: dict[str, tuple[int | None, dict[str, Any], str]] = {
    "too long": (6, {}, r"window t\.\.t\+6, longer than the rollout: .* choose at most 5"),
    "no end": (None, {"tokens_seq": 2}, r"suffix t\.\.T, and 2 tokens .* its end is undefined"),
    "over the end": (2, {"tokens_seq": 1}, r"window t\.\.t\+2, which the end of an iteration cuts"),
    "a message": (2, {"bytes": 8.0}, r"8 bytes per firing are a message, which is read once"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_reach_without_meaning_is_refused_with_the_way_out(case: str) -> None:
    reach, more, message = REFUSED[case]
    with pytest.raises(SpecError, match=message):
        rollout(5, reach, **more)


def test_a_suffix_of_a_task_that_fires_once_has_no_end() -> None:
    with pytest.raises(SpecError, match="a gives one token in an iteration, so its end is undef"):
        TaskGraph("g", (Task("a"), Task("b")), (Edge("a", "b", reach=None),))


@pytest.mark.parametrize("reach", [-1, 1.5, "t"])
def test_a_reach_is_a_whole_number_or_none(reach: Any) -> None:
    with pytest.raises(SpecError, match=r"edge a → b: reach is .*; needed is 0 \(point t\)"):
        Edge("a", "b", reach=reach)


def test_windows_on_a_path_add_up_and_a_whole_rollout_keeps_everything() -> None:
    path = (Edge("a", "b", reach=2), Edge("b", "c", reach=3), Edge("c", "a", tokens_seq=9))
    assert live_rows(path, "a", ("b",), 20) == 3
    assert live_rows(path, "a", ("b", "c"), 20) == 6
    assert live_rows(path, "b", ("c",), 20) == 4
    assert live_rows(path, "a", ("c",), 5) == 5
    assert live_rows((Edge("a", "b", 1, 20),), "a", ("b",), 20) == 20
    assert live_rows((Edge("a", "b", reach=None),), "a", ("b",), 20) == 20
