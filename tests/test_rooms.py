"""What is left out is missed by nothing else: rooms are deleted in a copy of the tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rooms import ROOMS, copy_without, run_python

BOX = "devices: {cpu: xeon_gold_6326}\n"
ON_BOX = ["dqn_cartpole", "platform=box.yaml"]
LISTS = ["algorithms", "platforms", "devices", "kinds", "methods", "policies"]

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
    "cluster": [
        ["check", "dqn_cartpole", "platform=ray"],
        ["calibrate", "--on", "ray"],
    ],
    "sweeps": [["sweep", "dqn_cartpole"]],
    "large": [],
    "makespan": [
        ["plan", *ON_BOX, "--objective", "makespan"],
        ["plan", *ON_BOX, "--method", "heft"],
    ],
    "advice": [["advise", *ON_BOX], ["plan", *ON_BOX, "--explain"]],
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


def answers(
    target: Path, environment: dict[str, str], commands: list[list[str]]
) -> list[tuple[int, str, str]]:
    """Status, output and errors of each command in a copy; none ends with a traceback."""
    (target / "box.yaml").write_text(BOX)
    (target / "pim.yaml").write_text("devices: {cpu: xeon_gold_6326, pim: upmem_2556}\n")
    found = json.loads(run_python(target, environment, "-c", PROGRAM, json.dumps(commands)))
    assert [fault for *_, fault in found if fault] == []
    return [(status, out, errors) for status, out, errors, _ in found]


@pytest.mark.parametrize("rooms", [*([room] for room in ROOMS), list(ROOMS)], ids="-".join)
def test_a_deleted_room_is_missed_by_what_needs_it_alone(rooms: list[str], tmp_path: Path) -> None:
    environment = copy_without(tmp_path, rooms)
    works = [["list", name] for name in LISTS]
    works += [["--help"], ["check", *ON_BOX], ["plan", *ON_BOX]]
    needing = [words for room in rooms for words in NEEDING[room]]
    found = answers(tmp_path, environment, works + needing)
    for words, (status, out, errors) in zip(works, found, strict=False):
        assert status == 0, (words, out, errors)
    for words, (status, out, errors) in zip(needing, found[len(works) :], strict=True):
        assert status in (1, 2), (words, out)
        lines = errors.splitlines()
        assert lines, words
        assert all("leaves out" in line for line in lines), (words, errors)
