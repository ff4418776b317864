"""The solver's benchmark: comparisons with enumeration, its reader of graphs, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.run import main
from benchmarks.solver.__main__ import PARTS
from benchmarks.solver.oracle import Problem, compare_bounds, compare_plans, problems
from tests.graphs import COUNT


@pytest.fixture(scope="module")
def drawn() -> list[Problem]:
    return list(problems(COUNT, first=500_000, most=300))


@pytest.mark.slow
def test_bounds_equal_those_of_enumeration(drawn: list[Problem]) -> None:
    for tally in compare_bounds(drawn).values():
        assert tally.compared == COUNT
        assert tally.wrong == []


@pytest.mark.slow
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
