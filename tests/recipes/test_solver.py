"""A solver is one file and one line: `solver.patch` on a copy of the tree passes the contract."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines


def test_a_solver_is_one_file_and_one_line_and_passes_the_contract(tmp_path: Path) -> None:
    assert changed_lines("solver.patch") == {
        "pearl/solvers/methods/random_restart.py": 0,
        "pearl/solvers/__init__.py": 1,
    }
    tree = copy_of_tree(tmp_path, "solver.patch")
    tests = ["tests/solvers/test_contracts.py", "-k", "RandomRestart or has_its_contract"]
    done = python_in(tree, "-m", "pytest", *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 passed" in done.stdout, done.stdout
    listed = python_in(tree, "-m", "pearl", "list", "methods")
    assert "Random restarts: the best of many random assignments" in listed.stdout, listed.stderr
    planned = python_in(
        tree, "-m", "pearl", "plan", "dqn_cartpole", "--set", "platform=cpu_gpu",
        "--method", "random_restart",
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert "random_restart" in planned.stdout
