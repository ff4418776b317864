"""The solver's benchmark: comparisons with enumeration, its reader of graphs, its exit status."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.bars import ABSENT, AbsentError
from benchmarks.run import main
from benchmarks.solver.__main__ import PARTS
from benchmarks.solver.oracle import Problem, compare_bounds, compare_plans, problems
from benchmarks.solver.sdf import (
    Case,
    by_linear_program,
    by_simulation,
    cases,
    read_sdf,
    run,
    timed_arcs,
)
from pearl.errors import SpecError
from pearl.graph.cycle_ratio import howard
from pearl.graph.period import expand
from pearl.solvers.methods import enumeration
from tests.graphs import COUNT


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return list(problems(COUNT, first=500_000, most=300))


def test_problems_have_slack_replicas_rates_fusions_memory_and_are_small(
    drawn: list[Problem],
) -> None:
    assert len(drawn) == COUNT
    assert all(4 <= p.plans <= enumeration.PLANS for p in drawn)
    assert sum(bool(p.limits.replicas) for p in drawn) > COUNT // 4
    assert sum(any(e.limit for e in p.graph.edges) for p in drawn) > COUNT // 4
    assert sum(bool(p.graph.fusions) for p in drawn) > 3
    assert sum(max(p.graph.repetition.values()) > 1 for p in drawn) > COUNT // 4
    assert max(len(p.graph.tasks) for p in drawn) >= 7
    assert max(len(p.costs.platform.devices) for p in drawn) == 4


def test_bounds_equal_those_of_enumeration(drawn: list[Problem]) -> None:
    for tally in compare_bounds(drawn).values():
        assert tally.compared == COUNT
        assert tally.wrong == []


def test_plans_of_every_shape_equal_those_of_enumeration() -> None:
    pytest.importorskip("ortools")
    for tally in compare_plans(problems(18, first=500_000, most=60)).values():
        assert tally.compared >= 3
        assert tally.wrong == []


PRODUCER_CONSUMER = """
dataflow graph PC {
        P[2]  -- 1 --> P
        P     -------> F
        F[3]  -- 2 --> P    // a comment; with [brackets]
        F     -------> C
        C[1]  -- 2 --> F
        C     -- initial tokens: 1 --> C
}
"""
"""The producer-consumer example of cmlib (Model-Based Design Lab, Eindhoven), throughput 2/5."""

RATES = """
dataflow graph Eggs {
    inputs i
    outputs o
    i        -- consumption rate: 4 -----------------------> Clean
    Clean[1] -- production rate: 4; consumption rate: 10 --> Box
    Box      -- initial tokens: 1 ------------------------> Box
    Box[1/2] -- production rate: 10 ----------------------> o
}
"""
"""Rates as cmlib writes them; a box takes half a time unit here."""


def test_graphs_are_read_with_tokens_and_times() -> None:
    graph, seconds = read_sdf(PRODUCER_CONSUMER, "pc")
    assert seconds == {"P": 2.0, "F": 3.0, "C": 1.0}
    assert {(e.src, e.dst): e.tokens for e in graph.edges}["F", "P"] == 2
    n, arcs = timed_arcs(Case(graph, seconds, Fraction(5, 2), None))
    for value in (howard(n, arcs)[0], by_linear_program(n, arcs), by_simulation(n, arcs)):
        assert value == pytest.approx(2.5, abs=1e-9)


def test_graphs_are_read_with_rates_ports_and_fractions() -> None:
    graph, seconds = read_sdf(RATES, "eggs")
    assert dict(graph.repetition) == {"i": 20, "Clean": 5, "Box": 2, "o": 20}
    assert seconds == {"i": 0.0, "Clean": 1.0, "Box": 0.5, "o": 0.0}


def test_an_actor_without_a_time_takes_one() -> None:
    graph, seconds = read_sdf("dataflow graph G {\n A --> B\n B -- 2 --> A\n}", "g")
    assert seconds == {"A": 1.0, "B": 1.0}
    assert howard(*timed_arcs(Case(graph, seconds, None, None)))[0] == pytest.approx(1.0)


def test_a_graph_that_deadlocks_is_read_and_refused_when_expanded() -> None:
    graph, _ = read_sdf("dataflow graph G {\n A ---> B\n B ---> A\n}", "g")
    with pytest.raises(SpecError, match="deadlock"):
        expand(graph)


@pytest.mark.parametrize("line", ["A -- many --> B", "A B", "A -- 1 -- B"])
def test_lines_that_do_not_fit_are_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"many|A B|A -- 1 -- B"):
        read_sdf(f"dataflow graph G {{\n {line}\n}}", "g")


def written(folder: Path, throughput: str = "2/5") -> Path:
    sdf = folder / "sdf"
    sdf.mkdir()
    (sdf / "pc.sdf").write_text(PRODUCER_CONSUMER)
    known = {
        "deadlock": "False",
        "repetitionVector": {"P": "1.0000", "F": "1.0000", "C": "1.0000"},
        "throughput": throughput,
    }
    (sdf / "pc.expected.json").write_text(json.dumps(known))
    ring = {"execution_time": {"a": 3, "b": 4}, "edges": [["a", 1, 1, "b", 0], ["b", 1, 1, "a", 1]]}
    (sdf / "classic.json").write_text(json.dumps({"ring": {**ring, "period": 7}}))
    return folder


def test_the_part_checks_every_graph_of_its_folder(tmp_path: Path) -> None:
    part = run(True, written(tmp_path))
    assert [row[0] for row in part.rows] == ["PC", "ring"]
    assert all(bar.met for bar in part.bars)


def test_a_period_that_differs_from_the_known_one_misses_the_bar(tmp_path: Path) -> None:
    part = run(True, written(tmp_path, throughput="1/2"))
    assert [bar.met for bar in part.bars] == [False]


def test_data_that_is_not_there_is_named_with_status_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AbsentError, match=r"classic\.json"):
        list(cases(tmp_path))
    assert main("solver", PARTS, ["sdf", "--data", str(tmp_path)]) == ABSENT
    assert "absent: sdf:" in capsys.readouterr().err


def test_the_command_runs_the_parts_asked_for_and_writes_one_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    arguments = ["sdf", "--quick", "--data", str(written(tmp_path)), "--json", str(target)]
    assert main("solver", PARTS, arguments) == 0
    found = json.loads(target.read_text())
    assert found["benchmark"] == "solver"
    assert set(found["parts"]) == {"sdf"}
    assert all(bar["met"] for bar in found["bars"])
    assert "bar: " in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main("solver", PARTS, ["luck"])
    assert stopped.value.code == 2
