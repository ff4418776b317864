"""A CPU of a data sheet is planned and trained without the rooms that only others need."""

import subprocess
import sys
from pathlib import Path

from pearl.cli.application import DONE

ROOMS = (
    "pearl_devices.gpu",
    "pearl_devices.fpga",
    "pearl_devices.pim",
    "pearl_devices.primitives.fpga",
    "pearl_estimators.gpu",
    "pearl_estimators.fpga",
    "pearl.cluster",
    "pearl.explanation",
    "pearl.advice",
    "pearl.population",
    "pearl.solvers.large",
    "pearl.solvers.makespan",
)


def loaded(*words: str) -> set[str]:
    """The modules of other rooms that a command has imported in the end."""
    code = f"""
import sys
from pearl.cli import app
try:
    app({list(words)!r})
except SystemExit as end:
    assert end.code in (None, {DONE})
print("loaded", *sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ran.stdout.splitlines()[-1].split()[1:]
    return {n for n in names if f"{n}.".startswith(tuple(f"{room}." for room in ROOMS))}


def test_plan_and_train_load_no_other_room(tmp_path: Path) -> None:
    box = tmp_path / "box.yaml"
    box.write_text("devices: {cpu: xeon_gold_6326}\n")
    of = ("dqn_cartpole", f"platform={box}", "train.steps=200", "train.final_episodes=0")
    assert loaded("plan", *of) == set()
    out = str(tmp_path / "run")
    assert loaded("train", *of, "--emulate", "--out", out) == set()
