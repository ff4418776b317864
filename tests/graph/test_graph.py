"""Rates, states and deadlock of `TaskGraph`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pearl.errors import SpecError
from pearl.graph.period import expand
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.testing.graphs import devices, mode, star, tasks
from pearl_devices import Kernel
from tests.graphs import dqn

SATELLITE = [  # Bhattacharyya, Murthy and Lee 1999, sample-rate converter: CD to DAT
    ("cd", 1, 1, "a"),
    ("a", 2, 3, "b"),
    ("b", 2, 7, "c"),
    ("c", 8, 7, "d"),
    ("d", 5, 1, "dat"),
]


def test_the_repetition_vector_of_cd_to_dat_is_that_of_the_literature() -> None:
    edges = tuple(Edge(a, b, p, c) for a, p, c, b in SATELLITE)
    graph = TaskGraph("cd2dat", tasks("cd", "a", "b", "c", "d", "dat"), edges)
    assert dict(graph.repetition) == {"cd": 147, "a": 147, "b": 98, "c": 28, "d": 32, "dat": 160}


def test_dqn_fires_the_learner_k_times() -> None:
    assert dict(dqn(4).repetition) == {
        "inference": 1,
        "env_step": 1,
        "replay_insert": 1,
        "replay_sample": 4,
        "update": 4,
        "replay_update": 4,
        "param_sync": 1,
    }


def test_any_other_name_is_a_name() -> None:
    for name in ("Conv_1/BiasAdd:0", "t 1", "Übung", "a-b", "a.b", "→"):
        assert Task(name, Kernel("k")).name == name


def test_with_one_token_too_few_a_multirate_cycle_deadlocks() -> None:
    def back(tokens: int) -> TaskGraph:
        return TaskGraph("g", tasks("a", "b"), (Edge("a", "b", 2, 3), Edge("b", "a", 3, 2, tokens)))

    expand(back(4))
    with pytest.raises(SpecError, match="deadlock"):
        expand(back(3))


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
