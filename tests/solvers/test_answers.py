"""What the solver answers where there is no plan, and what is refused: the whole texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.model.search_space import search_spaces
from pearl.testing.graphs import devices, loop, mode, star
from pearl_devices import Kernel
from tests.answers import check, titles

FILE = Path(__file__).parent / "answers.txt"

ONE = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), mode("y", "b", 1.0)))
COSTLY = tuple(
    mode(t, d, s, energy=e) for t in "xy" for d, s, e in (("a", 2.0, 1.0), ("b", 1.0, 50.0))
)
HELD = TaskGraph(
    "g", tuple(Task(t, Kernel(t, resident_bytes=1e6)) for t in "xyz"), loop(*"xyz").edges
)
WROTE = TaskGraph(
    "g", tuple(Task(t, Kernel(t), writes=("big",)) for t in "xy"), loop(*"xy").edges, {"big": 3e6}
)


def both(*names: str, seconds: tuple[float, float] = (1.0, 1.0), **more: Any) -> CostTable:
    """Each task on a and on b, in so many seconds there."""
    modes = (mode(t, d, s) for t in names for d, s in zip("ab", seconds, strict=True))
    return CostTable(star(devices("a", "b", **more)), tuple(modes))


def plan(graph: TaskGraph, costs: CostTable, **limits: Any) -> str:
    return solve(graph, costs, limits=Limits(**limits)).status


def spaces(graph: TaskGraph, costs: CostTable, **limits: Any) -> int:
    return len(search_spaces(Problem(graph, costs, Limits(**limits))))


@pytest.mark.parametrize("title", titles(FILE))
def test_the_solver_answers_what_is_kept(title: str, request: pytest.FixtureRequest) -> None:
    check(FILE, title, globals(), write=request.config.getoption("--write"))
