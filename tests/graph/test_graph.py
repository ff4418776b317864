"""Rates, states and deadlock of `TaskGraph`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from pearl.errors import SpecError
from pearl.graph.period import expand
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
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


def test_the_repetition_vector_is_the_same_in_any_order_of_the_tasks() -> None:
    edges = (Edge("a", "b", 3, 1), Edge("c", "b", 1, 1))
    for order in ("abc", "bca", "cab"):
        graph = TaskGraph("g", tasks(*order), edges)
        assert dict(graph.repetition) == {"a": 1, "b": 3, "c": 3}


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


@pytest.mark.parametrize("name", ["a>b", "a+b", "a#0", "", "draw > learn"])
def test_names_that_would_read_as_a_transfer_a_fused_call_or_a_copy_are_refused(name: str) -> None:
    held = [c for c in ">+#" if c in name]
    with pytest.raises(SpecError) as error:
        Task(name, Kernel("k"))
    text = str(error.value)
    assert text.startswith(f"task {name!r}: its name ")
    assert f"holds {held[0]!r}" in text if held else "is empty" in text


def test_any_other_name_is_a_name() -> None:
    for name in ("Conv_1/BiasAdd:0", "t 1", "Übung", "a-b", "a.b", "→"):
        assert Task(name, Kernel("k")).name == name


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        ({"production": 1.5}, "edge a → b: production is 1.5; a whole number is needed"),
        ({"tokens_seq": 0.5}, "tokens_seq is 0.5; a whole number"),
        ({"consumption": 0}, "rates are 1 → 0; at least 1 each"),
        ({"production": 0}, "rates are 0 → 1"),
        ({"tokens_seq": -1}, "must be at least 0"),
        ({"bytes": float("nan")}, "bytes is nan; it must be finite"),
        ({"limit": "power_w"}, "limit is 'power_w'; it names what bounds the slack, one of"),
    ],
)
def test_edges_that_cannot_be_are_not_built(edge: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=re.escape(text)):
        Edge("a", "b", **edge)


@pytest.mark.parametrize("size", [float("nan"), float("inf"), -1.0])
def test_states_have_a_size_that_can_be(size: float) -> None:
    with pytest.raises(SpecError, match=f"bytes of state 's' is {size}; it must"):
        TaskGraph("g", tasks("a"), (), {"s": size})


def test_each_component_has_its_own_least_solution() -> None:
    edges = (Edge("a", "b", 2, 1), Edge("c", "d", 1, 3))
    graph = TaskGraph("two", tasks("a", "b", "c", "d"), edges)
    assert dict(graph.repetition) == {"a": 1, "b": 2, "c": 3, "d": 1}


def test_rates_that_disagree_name_the_cycle() -> None:
    edges = (Edge("a", "b", 2, 1), Edge("b", "c"), Edge("a", "c"))
    with pytest.raises(SpecError, match="rates disagree around the cycle") as error:
        TaskGraph("g", tasks("a", "b", "c"), edges)
    assert all(f"{n}" in str(error.value) for n in "abc")


def test_a_self_loop_with_unequal_rates_is_an_error() -> None:
    with pytest.raises(SpecError, match="produces 2 and consumes 1"):
        TaskGraph("g", tasks("a"), (Edge("a", "a", 2, 1, 2),))


def test_unknown_names_are_all_reported_at_once() -> None:
    with pytest.raises(SpecError) as error:
        TaskGraph(
            "g",
            (Task("a", Kernel("a"), reads=("s",)),),
            (Edge("a", "z"),),
            fusions=(Fusion("f", ("a", "y"), Kernel("f")),),
        )
    assert len(error.value.problems) == 3


def test_tasks_of_one_state_need_paths_both_ways() -> None:
    found = tuple(Task(n, Kernel(n), writes=("s",)) for n in "ab")
    with pytest.raises(SpecError, match="from b to a"):
        TaskGraph("g", found, (Edge("a", "b"),), {"s": 1.0})


def test_slack_counts_firings_of_the_rarer_side() -> None:
    assert Edge("a", "b", 4, 1, 3, slack=2).tokens == 3 + 2 * 4


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
