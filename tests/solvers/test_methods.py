"""The table of methods: a line without its file, a file without its function, a faulty function;
methods by module path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pearl import explain, solve, solvers
from pearl.cli import app
from pearl.errors import SpecError
from pearl.explanation import resolve
from pearl.graph.limits import Limits
from pearl.planning.costs import CostTable
from pearl.planning.plans import load_plan
from pearl.solvers import METHODS, solver
from pearl.solvers.model.method import OBJECTIVES, Method
from pearl.testing.graphs import devices, loop, mode, star

GRAPH = loop("x", "y")
COSTS = CostTable(
    star(devices("a", "b", lanes=2, memory_bytes=1e9)),
    tuple(mode(t, d, s) for t in "xy" for d, s in (("a", 1.0), ("b", 2.0))),
)
NAMES = count()
SET = ["--set", "platform=cpu_gpu"]
Register = Callable[..., str]

GOOD = """
from dataclasses import replace
from pearl.solvers.makespan import heft
def solve(problem, search):
    outcome = heft.solve(problem, search)
    best = outcome.best
    a = best.assignment
"""


HALF = {
    "no module": (None, "No module named"),
    "no function": ("x = 1", "no attribute 'solve'"),
    "no callable": ("solve = 1", "type int"),
    "does not import": ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    "syntax": ("def solve(", "never closed"),
    "arguments": ("def solve(problem): ...", "does not take two arguments"),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with this text into a package of the working folder; returns its path."""

    def write(text: str) -> str:
        package = f"mine_{next(NAMES)}"
        (tmp_path / package).mkdir()
        (tmp_path / package / "fast.py").write_text(text)
        return f"{package}.fast"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(solvers, "METHODS", dict(METHODS))
    monkeypatch.setattr(solver, "METHODS", solvers.METHODS)
    monkeypatch.setattr(resolve, "METHODS", solvers.METHODS)
    return write


def test_a_method_by_module_path_plans_and_explains_its_plans(own: Callable[[str], str]) -> None:
    name = own(
        "from pearl.solvers.makespan.heft import solve as other\nCALLS = []\n"
        "def solve(problem, search):\n    CALLS.append(search.method)\n"
        "    return other(problem, search)\n"
    )
    plan = solve(GRAPH, COSTS, method=name)
    calls = sys.modules[name].CALLS
    assert (plan.method, set(calls)) == (name, {name})
    before = len(calls)
    explain(plan)
    assert len(calls) > before
    ran = CliRunner().invoke(app, ["plan", "dqn_cartpole", *SET, "--method", name, "--json", "p"])
    assert ran.exit_code == 0, ran.stderr
    assert load_plan("p").method == name


def test_a_plan_that_names_a_module_imports_nothing(own: Callable[[str], str]) -> None:
    name = own("raise SystemExit('imported')")
    plan = replace(solve(GRAPH, COSTS, method="heft"), method=name)
    explain(plan)
    assert name not in sys.modules


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Registers the method `mine` with a file of this text; None: no file."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def register(text: str | None, objectives: tuple[str, ...] = OBJECTIVES) -> str:
        module = f"mine_{next(NAMES)}"
        if text is not None:
            (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.setitem(METHODS, "mine", Method(f"{module}:solve", objectives))
        return module

    yield register
    for module in [m for m in sys.modules if m.startswith("mine_")]:
        del sys.modules[module]


@pytest.mark.parametrize(("text", "fault"), HALF.values(), ids=HALF)
def test_a_half_registered_method_is_one_sentence_with_its_file(
    faulty: Register, text: str | None, fault: str
) -> None:
    module = faulty(text)
    with pytest.raises(SpecError) as error:
        solve(GRAPH, COSTS, method="mine")
    (sentence,) = error.value.problems
    assert sentence.startswith(f"method 'mine': {module}.py: ")
    assert fault in sentence
    assert "solve(problem: Problem, search: Search) -> Outcome" in sentence
    for command in (["list", "methods"], ["plan", "dqn_cartpole", "--method", "mine"]):
        ran = CliRunner().invoke(app, [*command, *SET] if "plan" in command else command)
        assert isinstance(ran.exception, SystemExit), ran.exception
        assert ran.exit_code == 2
        assert "".join(sentence.split()) in "".join(ran.stderr.split())


OUTCOMES = {
    "None": ("def solve(problem, search): return None", "returned None, not an Outcome"),
    "a plan": (GOOD + "    return a", "not an Outcome"),
    "no Candidate": (GOOD + "    return replace(outcome, best=a)", "not a Candidate"),
    "raises": ("def solve(problem, search): return search.nothing", "failed with AttributeError"),
    "slower than allowed": (
        GOOD + "    return replace(outcome, best=replace(best, period_s=0.5, cost=0.5), bound=0.0)",
        "s short at a period of 0.5 s",
    ),
    "mode": (
        GOOD + "    mode = replace(a.modes[0], variant='other')\n"
        "    a = replace(a, modes=(mode, *a.modes[1:]))\n"
        "    return replace(outcome, best=replace(best, assignment=a))",
        "mode ('a', 'other', 1) is not among those allowed",
    ),
    "limits": (
        GOOD + "    free = replace(problem, limits=replace(problem.limits, pin={}))\n"
        "    return heft.solve(free, search)",
        "choose y: the mode ('a', 'v', 1) is not among those allowed",
    ),
    "graph": (
        GOOD + "    x = a.expansion\n"
        "    other = replace(x.graph, tasks=(replace(x.graph.tasks[0], environments=7),"
        " *x.graph.tasks[1:]))\n"
        "    a = replace(a, expansion=replace(x, graph=other))\n"
        "    return replace(outcome, best=replace(best, assignment=a))",
        "it is of another graph",
    ),
    "edges": (
        GOOD + "    x = a.expansion\n"
        "    other = replace(x.graph, edges=2 * x.graph.edges)\n"
        "    a = replace(a, expansion=replace(x, graph=other))\n"
        "    return replace(outcome, best=replace(best, assignment=a))",
        "it is of another graph",
    ),
}


@pytest.mark.parametrize(("text", "fault"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_faulty_outcome_is_one_sentence_with_the_file(
    faulty: Register, text: str, fault: str
) -> None:
    module = faulty(text)
    with pytest.raises(SpecError) as error:
        solve(GRAPH, COSTS, method="mine", limits=Limits(pin={"y": "b"}, max_lanes=2))
    (sentence,) = error.value.problems
    assert sentence.startswith(f"method 'mine': {module}.py: ")
    assert fault in sentence


def test_a_plan_that_breaks_a_rule_of_several_tasks_is_one_sentence(faulty: Register) -> None:
    faulty(
        GOOD + "    apart = replace(problem.limits, max_lanes=None, pin={'x': 'a', 'y': 'b'})\n"
        "    return heft.solve(replace(problem, limits=apart), search)"
    )
    with pytest.raises(SpecError, match=r"max_lanes: its lanes are .*at most 1 lane"):
        solve(GRAPH, COSTS, method="mine", limits=Limits(max_lanes=1))
