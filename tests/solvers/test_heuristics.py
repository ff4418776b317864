"""HEFT, CPoP, PEFT and tabu search: figures of the papers, and graphs by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from examples import peft
from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.makespan import heft
from pearl.solvers.makespan.first_schedule import critical_path_schedule, downward_rank
from pearl.solvers.model.dag_instance import build_instance, makespan_spaces
from pearl.testing.graphs import devices, loop, mode, star, tasks
from pearl.testing.solver_contract import TOLERANCE, two_devices
from pearl_devices import Link, Platform

HEURISTICS = ("heft", "examples.peft", "examples.lshs")

# Topcuoglu, Hariri and Wu 2002, figure 2: seconds of ten tasks on three processors, and what an
# edge costs between two different ones.
SECONDS = {
    1: (14, 16, 9), 2: (13, 19, 18), 3: (11, 13, 19), 4: (13, 8, 17), 5: (12, 13, 10),
    6: (13, 16, 9), 7: (7, 15, 11), 8: (5, 11, 14), 9: (18, 12, 20), 10: (21, 7, 16),
}  # fmt: skip
COMMUNICATION = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip


def paper_example() -> tuple[TaskGraph, CostTable]:
    """Three processors joined by links on which no message waits; a byte takes a second."""
    names = ("p1", "p2", "p3")
    links = tuple(Link(a, b, 0.0, 1.0, paid_by="nobody") for a, b in combinations(names, 2))
    platform = Platform("three", devices(*names, lanes=1, width=1), links)
    graph = TaskGraph(
        "ten",
        tasks(*(f"n{i}" for i in SECONDS)),
        tuple(Edge(f"n{a}", f"n{b}", bytes=c) for (a, b), c in COMMUNICATION.items()),
    )
    modes = tuple(
        mode(f"n{i}", name, s)
        for i, row in SECONDS.items()
        for name, s in zip(names, row, strict=True)
    )
    return graph, CostTable(platform, modes)


def test_heft_has_the_upward_ranks_of_the_paper() -> None:
    it = build_instance(makespan_spaces(Problem(*paper_example(), Limits()))[0])
    published = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert heft.upward_rank(it) == pytest.approx(published, abs=1e-3)


def test_heft_schedules_the_example_of_its_paper_in_80() -> None:
    graph, costs = paper_example()
    plan = solve(graph, costs, objective="makespan", method="heft")
    assert plan.value == pytest.approx(80)
    assert plan.value_unit == "s"
    assert plan.bound_value <= 80
    where = {t.task: t.device for t in plan.tasks}
    assert [where[f"n{i}"] for i in (1, 2, 3, 4, 5, 6)] == ["p3", "p1", "p3", "p2", "p3", "p2"]


def test_cpop_schedules_the_example_of_its_paper_in_86() -> None:
    """With the downward ranks of the paper, and the critical path n1, n2, n9, n10 on p2."""
    it = build_instance(makespan_spaces(Problem(*paper_example(), Limits()))[0])
    published = [0, 31, 25, 22, 24, 27, 62.333, 66.667, 63.667, 93.333]
    assert downward_rank(it) == pytest.approx(published, abs=1e-3)
    found = critical_path_schedule(it)
    assert found is not None
    assert found.cost == pytest.approx(86)
    modes = zip(it.space.expansion.units, found.assignment.modes, strict=True)
    device = {unit[0]: m.device for unit, m in modes}
    assert {device[t] for t in ("n1", "n2", "n9", "n10")} == {"p2"}


def test_tabu_search_beats_both_on_the_example_of_their_paper() -> None:
    plan = solve(*paper_example(), objective="makespan", method="tabu")
    assert plan.value < 80 * (1 - TOLERANCE)


def test_the_optimistic_cost_table_is_that_of_equation_6() -> None:
    # x → y, 3 s apart: behind x on a is min(5 on a, 3 + 1 on b), on b min(1, 3 + 5)
    platform = star(devices("a", "b", lanes=1, width=1), 3.0)
    graph = TaskGraph("xy", tasks("x", "y"), (Edge("x", "y"),))
    seconds = {("x", "a"): 1.0, ("x", "b"): 1.0, ("y", "a"): 5.0, ("y", "b"): 1.0}
    costs = CostTable(platform, tuple(mode(t, d, s) for (t, d), s in seconds.items()))
    it = build_instance(makespan_spaces(Problem(graph, costs))[0])
    assert peft.optimistic_costs(it) == [[pytest.approx(4.0), pytest.approx(1.0)], [0.0, 0.0]]


def test_peft_sees_what_heft_does_not() -> None:
    # x ends first on a, but all that follows runs well on b only
    platform = star(devices("a", "b", lanes=1, width=1), 10.0)
    graph = TaskGraph("xy", tasks("x", "y"), (Edge("x", "y"),))
    seconds = {("x", "a"): 1.0, ("x", "b"): 2.0, ("y", "a"): 20.0, ("y", "b"): 1.0}
    costs = CostTable(platform, tuple(mode(t, d, s) for (t, d), s in seconds.items()))
    values = {m: solve(graph, costs, objective="makespan", method=m).value for m in HEURISTICS}
    assert values["heft"] == pytest.approx(12.0)
    assert values["examples.peft"] == pytest.approx(3.0)
    assert solve(graph, costs, objective="makespan", method="tabu").value == pytest.approx(3.0)


def test_max_lanes_that_earliest_finish_would_use_up_reach_all_tasks() -> None:
    # x runs on either, y only on b: with one lane both must be there
    modes = (mode("x", "a", 1.0), mode("x", "b", 9.0), mode("y", "b", 1.0))
    for method in HEURISTICS:
        plan = solve(
            loop("x", "y"),
            CostTable(two_devices(), modes),
            method=method,
            limits=Limits(max_lanes=1),
        )
        assert {t.device for t in plan.tasks} == {"b"}
