"""A solver is one file and one line: `solver.patch` on a copy of the tree passes the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines

COMMANDS = """
from typer.testing import CliRunner
from pearl.cli import app
plan = ["plan", "dqn_cartpole", "--set", "platform=cpu_gpu", "--method", "random_restart"]
plan.append("--verbose")
for words in (["list", "methods"], plan):
    ran = CliRunner().invoke(app, words)
    print(ran.stdout)
    assert ran.exit_code == 0, ran.output
"""


@pytest.mark.slow
def test_a_solver_is_one_file_and_one_line_and_passes_the_contract(tmp_path: Path) -> None:
    assert changed_lines("solver.patch") == {
        "pearl/solvers/methods/random_restart.py": 0,
        "pearl/solvers/__init__.py": 1,
    }
    tree = copy_of_tree(tmp_path, "solver.patch")
    tests = ["tests/solvers/test_contracts.py", "-k", "RandomRestart"]
    done = python_in(tree, "-m", "pytest", *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "28 passed" in done.stdout, done.stdout
    done = python_in(tree, "-c", COMMANDS)
    assert done.returncode == 0, done.stderr
    assert "Random restarts: the best of many random assignments" in done.stdout
    assert "method      random_restart" in done.stdout, done.stdout
