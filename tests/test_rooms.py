"""What is left out is missed by nothing else: rooms are deleted in a copy of the tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.rooms import PACKAGES, ROOMS, files_of
from tests.sources import ROOT, imports
from tests.test_layering import imported

BOX = "devices: {cpu: xeon_gold_6326}\n"
SPEC = ["dqn_cartpole", "platform=box.yaml"]
LISTS = ["algorithms", "platforms", "devices", "kinds", "methods", "policies"]
WORKING = [*(["list", name] for name in LISTS), ["--help"], ["check", *SPEC], ["plan", *SPEC]]

NEEDING = {
    "gpu": [
        ["calibrate-gpu", "rows.csv", "--model", "X", "--multiprocessors", "8", "--source", "me"],
        ["check", "dqn_cartpole", "platform=cpu_gpu"],
    ],
    "fpga": [
        ["rtl", "dqn_cartpole", "--out", "rtl"],
        ["plan", "dqn_cartpole", "platform=cpu_gpu_fpga"],
    ],
    "pim": [["check", "dqn_cartpole", "platform=pim.yaml"]],
    "cluster": [["check", "dqn_cartpole", "platform=ray"], ["calibrate", "--on", "ray"]],
    "sweeps": [["sweep", "dqn_cartpole"]],
    "large": [],  # `MANY` needs it
    "makespan": [["plan", *SPEC, "--objective", "makespan"], ["plan", *SPEC, "--method", "heft"]],
    "advice": [["advise", *SPEC], ["plan", *SPEC, "--explain"]],
}
"""Room → commands that need it."""

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from pearl.cli import app
answers = []
for words in json.loads(sys.argv[1]):
    ran = CliRunner().invoke(app, words)
    fault = None if isinstance(ran.exception, SystemExit) else ran.exception
    answers.append([ran.exit_code, ran.stdout, ran.stderr, repr(fault) if fault else None])
import pearl
print(json.dumps(answers))
"""

MANY = """
from pearl.solvers.first_use import tiny_problem
from pearl.solvers.solver import solve_problem

solve_problem(tiny_problem("throughput", 45))
"""
"""A plan of many tasks."""

CORE = ("graph", "io", "planning", "verification", "callbacks")
"""Folders of tests that are run without each room."""


def leave_out(rooms: list[str], folder: Path) -> Path:
    """Return a copy of the tree without some rooms."""
    tree = copy_of_tree(folder, without=[path for room in rooms for path in ROOMS[room]])
    (tree / "box.yaml").write_text(BOX)
    (tree / "pim.yaml").write_text("devices: {cpu: xeon_gold_6326, pim: upmem_2556}\n")
    return tree


def answers(tree: Path, commands: list[list[str]]) -> list[tuple[int, str, str]]:
    """Return status, output and errors of commands in a copy; none ends with a traceback."""
    ran = python_in(tree, "-c", PROGRAM, json.dumps(commands))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert [fault for *_, fault in found if fault] == []
    return [(status, out, errors) for status, out, errors, _ in found]


def modules(rooms: list[str]) -> tuple[str, ...]:
    """Return the modules and packages of rooms."""
    paths = [path.removesuffix(".py").split("/") for room in rooms for path in ROOMS[room]]
    return tuple(".".join(p[1:] if p[0] in ("devices", "estimators") else p) for p in paths)


EACH = pytest.mark.parametrize("rooms", [list(ROOMS), *([room] for room in ROOMS)], ids="-".join)


@pytest.mark.sweep(99)
@EACH
def test_what_needs_a_deleted_room_says_so_and_all_else_works(
    rooms: list[str], tmp_path: Path
) -> None:
    needing = [words for room in rooms for words in NEEDING[room]]
    tree = leave_out(rooms, tmp_path)
    found = answers(tree, WORKING + needing)
    for words, (status, out, errors) in zip(WORKING, found, strict=False):
        assert status == 0, (words, out, errors)
    for words, (status, _, errors) in zip(needing, found[len(WORKING) :], strict=True):
        assert status in (1, 2), words
        lines = errors.splitlines()
        assert lines, words
        assert all("leaves out" in line for line in lines), (words, errors)
    if "large" in rooms:
        last = python_in(tree, "-c", MANY).stderr.splitlines()[-1]
        assert "45 tasks" in last
        assert "leaves out" in last


@pytest.mark.slow
@EACH
def test_runs_and_tests_of_the_core_pass_without_a_room(rooms: list[str], tmp_path: Path) -> None:
    tree, gone = leave_out(rooms, tmp_path), modules(rooms)
    run = ["train.steps=200", "train.final_episodes=0", "--emulate", "--out", "run"]
    for status, _, errors in answers(tree, [["train", *SPEC, *run], ["report", "run"]]):
        assert status == 0, errors
    files = [
        str(file.relative_to(ROOT))
        for folder in CORE
        for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        if file.name != "test_answers.py"  # its tables ask for anything
        and not any(f"{name}.".startswith(f"{room}.") for name in imported(file) for room in gone)
    ]
    assert len(files) > 10
    ran = python_in(tree, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files)
    assert ran.returncode == 0, ran.stdout[-5000:]


def test_the_core_names_rooms_in_tables_alone() -> None:
    """No statement imports a room, within functions neither, but for the searches of many tasks,
    for which the solvers ask first (`has_large`)."""
    core = files_of(PACKAGES) - files_of(path for paths in ROOMS.values() for path in paths)
    gone = tuple(f"{name}." for room in ROOMS if room != "large" for name in modules([room]))
    found = {(f, n) for f in core for n in imports(f) if f"{n}.".startswith(gone)}
    assert found == set()
