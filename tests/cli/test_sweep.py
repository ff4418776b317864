"""`pearl sweep`: its words, and the schedule without running it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pearl.cli import app
from tests.schemas.test_schemas import problems

RATE = "algorithm.learning_rate"
ONE_LANE = ("--set", "limits.max_lanes=1")


def ran(*arguments):
    return CliRunner().invoke(app, ["sweep", "dqn_cartpole", *ONE_LANE, *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--seeds", "9..0"), "runs backwards"),
        (("--over", "algorithm.learnin_rate=1"), "learning_rate"),
        (("--over", f"{RATE}="), "has no values"),
        (("--over", f"{RATE}=1e-4", "--over", f"{RATE}=1e-3"), "given twice"),
        (("--over", RATE), "the form must be key.path=value"),
        (("--over", f"{RATE}=1e-4,1e-3", "--asha", "eta=3"), "min_steps is missing"),
        (("--over", f"{RATE}=1e-4,1e-3", "--asha", "eta=3,min=1"), "write eta=N,min_steps=N"),
        (("--tournament", "rounds=2,members=2,board=1"), "nothing varies"),
        (
            ("--asha", "eta=2,min_steps=9", "--tournament", "rounds=2,members=2,board=1"),
            "both given; leave one of them out",
        ),
    ],
)
def test_wrong_words_are_a_sentence_before_anything_runs(arguments, why, tmp_path):
    result = ran(*arguments, "--out", tmp_path / "sweep")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "sweep").exists()


def test_a_dry_run_prints_the_schedule_as_json_too():
    over = ("--over", f"{RATE}=1e-4,1e-3", "--dry-run", "--json", "-")
    result = ran("train.steps=600", "--seeds", "0..1", *over)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert problems(found, "sweep") == []
    assert found["status"] == "planned"
    assert len(found["packing"]["timeline"]) == 4
    assert {run["steps"] for run in found["runs"]} == {600}
    assert "4 runs, " in result.stderr
