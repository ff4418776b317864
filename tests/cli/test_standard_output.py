"""Standard output has the results of a command, whatever code of the user prints."""

import json
import os
import subprocess
import sys

import pytest

from pearl.cli.application import SCHEMA

LOUD = """
import ctypes, os, subprocess, sys
print("a library greets")

class Env:
    def __new__(cls):
        from gymnasium.envs.classic_control import CartPoleEnv
        print("the environment greets")
        sys.__stdout__.write("by the first stream\\n")
        os.write(1, b"by the descriptor\\n")
        subprocess.run(["echo", "by a child"])
        ctypes.CDLL(None).puts(b"by C, which writes at the end")
        return CartPoleEnv()
"""


@pytest.mark.parametrize("to", ["-", "found.json"])
def test_prints_of_user_code_go_to_standard_error(to, tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "spec.yaml").write_text("algorithm: {name: dqn, env: 'loud:Env'}\n")
    command = [sys.executable, "-c", "from pearl.cli import main; main()"]
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    ran = subprocess.run(
        [*command, "check", "spec.yaml", "--import", "--json", to],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    for said in (
        "a library",
        "the environment",
        "by the first",
        "by the desc",
        "by a child",
        "by C",
    ):
        assert said in ran.stderr
        assert said not in ran.stdout
    if to == "-":
        assert json.loads(ran.stdout)["schema"] == SCHEMA
