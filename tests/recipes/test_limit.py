"""A limit is one file and one line: `limit.patch` on a copy of the tree passes the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines

CONTRACT = """
import sys, pytest
from dataclasses import replace
import pearl.graph.limits as limits
if ROWS is None:
    limits.ADDED = tuple(replace(limit, rows=None) for limit in limits.ADDED)
sys.exit(pytest.main(["-p", "no:cacheprovider", "tests/graph/test_limit_contracts.py"]))
"""
SPEC = """
import sys
import pearl
from typer.testing import CliRunner
from pearl.cli import app

def run(*words):
    ran = CliRunner().invoke(app, words)
    return ran.exit_code, ran.output

for most in (1, 2):
    spec = pearl.load("dqn_cartpole", set={"platform": "cpu_gpu", "limits.max_devices": most})
    plan = pearl.plan(spec)
    assert len({t.device for t in plan.tasks}) <= most
for words in (["check"], ["plan", "--method", "heft"], ["plan", "--set", "objective=makespan"]):
    command = [words[0], "dqn_cartpole", "--set", "platform=cpu_gpu", *words[1:]]
    code, text = run(*command, "--set", "limits.max_devices=1")
    assert code == 0, text
code, text = run("plan", "dqn_cartpole", "--set", "limits.max_devices=0")
assert code and "limits.max_devices" in text, text
pinned = ["--set", "limits.pin.learn=gpu", "--set", "limits.pin.step=cpu"]
code, text = run("plan", "dqn_cartpole", "--set", "platform=cpu_gpu", *pinned,
                 "--set", "limits.max_devices=1")
assert code and "uses at most 1 device (max_devices); 2 would be enough" in " ".join(text.split())
assert run("schema", "--json", "schema.json")[0] == 0
assert "Maximum number of devices that the plan uses." in open("schema.json").read()
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_tree(tmp_path_factory.mktemp("limit"), "limit.patch")


def test_a_limit_is_one_file_and_one_line() -> None:
    assert changed_lines("limit.patch") == {
        "pearl/graph/limits/__init__.py": 1,
        "pearl/graph/limits/max_devices.py": 0,
    }


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["...", "None"])
def test_every_method_agrees_with_enumeration_with_rows_and_without(tree: Path, rows: str) -> None:
    done = python_in(tree, "-c", CONTRACT.replace("ROWS", rows))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_specs_plans_conflicts_and_the_schema_know_the_limit(tree: Path) -> None:
    done = python_in(tree, "-c", SPEC)
    assert done.returncode == 0, done.stdout + done.stderr
