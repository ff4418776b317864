"""Graphs and cost tables find their parts without a look at all of them for each."""

from __future__ import annotations

from itertools import pairwise

from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.testing.graphs import devices, mode, star, tasks
from pearl_devices import Kernel


class Counted(tuple):
    """A tuple that counts how often one of its items is looked at in turn."""

    looks = 0

    def __iter__(self):
        for item in super().__iter__():
            self.looks += 1
            yield item


def test_tasks_and_firings_are_found_without_a_look_at_all_tasks_and_edges_for_each() -> None:
    n = 300
    names = [f"t{i}" for i in range(n)]
    some = Counted(tasks(*names))
    edges = Counted(Edge(a, b) for a, b in pairwise(names))
    graph = TaskGraph("chain", some, edges)
    for name in names:
        assert graph.task(name).name == name
        assert graph.repetition[name] == 1
        assert graph.origin(name) == (name, 0)
    assert some.looks < 20 * n
    assert edges.looks < 20 * n


def test_states_are_checked_without_a_look_at_all_edges_for_each_task() -> None:
    n = 30
    names = [f"t{i}" for i in range(n)]
    around = [*pairwise(names), (names[-1], names[0])]
    edges = Counted(Edge(a, b, tokens_seq=int(b == names[0])) for a, b in around)
    touching = tuple(Task(name, Kernel("k"), writes=("s",)) for name in names)
    TaskGraph("ring", touching, edges, {"s": 1.0})
    assert edges.looks < 20 * n


def test_the_modes_of_a_task_are_found_without_a_look_at_all_modes_for_each() -> None:
    n = 300
    names = [f"t{i}" for i in range(n)]
    modes = Counted(mode(name, "a", 1.0) for name in names)
    table = CostTable(star(devices("a")), modes)
    assert [table.of(name)[0].tasks for name in names] == [(name,) for name in names]
    assert table.of("t0", "t1") == table.of("nobody") == ()
    assert modes.looks < 20 * n
