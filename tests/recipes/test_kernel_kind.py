"""A kernel kind is one file and one line: the patch that adds one is planned and trained."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import pearl
from pearl_devices.kernels import KINDS
from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines

PATCH = "kernel_kind.patch"
FILE = "devices/pearl_devices/kernels/reward_clip.py"
ALGORITHM = """
from pearl.algorithms import ddpg
from pearl.algorithms.ddpg import ACTIONS, POLICY, Options, initialise, losses
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl_devices import kernel
def graph(system):
    task = Task("clip", kernel("reward_clip", envs=system.algorithm.num_envs))
    return inserted(ddpg.graph(system), task, after="step", before="store")
"""
SPEC = {
    "algorithm": {
        "name": "own.clipped", "env": "Pendulum-v1", "num_envs": 4, "hidden": [16],
        "batch_size": 8, "learning_starts": 40, "replay": {"capacity": 1000, "kind": "uniform"},
    },
    "platform": "cpu_gpu",
    "limits": {"max_lanes": 1},
    "train": {"steps": 400, "evaluate_every": 0, "final_episodes": 0},
}  # fmt: skip
COMMANDS = """
import sys
from typer.testing import CliRunner
from pearl.cli import app
for words in sys.argv[1:]:
    ran = CliRunner().invoke(app, [*words.split(), "spec.yaml"])
    assert isinstance(ran.exception, SystemExit) and ran.exit_code, words
    print(*ran.output.split())
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = copy_of_tree(tmp_path_factory.mktemp("clip"), PATCH)
    (found / "own").mkdir()
    (found / "own/clipped.py").write_text(ALGORITHM)
    (found / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    return found


def test_the_patch_is_one_file_and_one_line() -> None:
    assert changed_lines(PATCH) == {"devices/pearl_devices/kernels/__init__.py": 1, FILE: 0}


def test_it_keeps_the_contract_by_being_in_the_table(tree: Path) -> None:
    words = ("-p", "no:cacheprovider", "-k", "RewardClip or sound_records")
    done = python_in(tree, "-m", "pytest", *words, "tests/devices/test_kernel_kinds.py")
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


@pytest.mark.slow
def test_it_is_planned_and_what_it_lacks_is_one_sentence(tree: Path) -> None:
    done = python_in(tree, "-m", "pearl", "plan", "spec.yaml")
    assert done.returncode == 0, done.stderr
    assert "clip" in done.stdout
    text = (tree / FILE).read_text()
    check, plan, train = ["check", "--import"], ["plan"], ["train"]
    nameless = text.replace('name="reward_clip"', 'name=""')
    for wrong, why, commands in (
        (
            text.replace('    arrays=lambda kernel: {"step', '    # {"step'),
            "it cannot be imported",
            [plan],
        ),
        (nameless, "a KernelKind of it has no name", [check, plan, train]),
        (None, "it cannot be imported: ModuleNotFoundError", [train]),
    ):
        (tree / FILE).unlink() if wrong is None else (tree / FILE).write_text(wrong)
        done = python_in(tree, "-c", COMMANDS, *(" ".join(c) for c in commands))
        assert done.returncode == 0, done.stderr
        for said in done.stdout.splitlines():
            assert f"pearl_devices/kernels/reward_clip.py: {why}" in said
            assert "Traceback" not in said
        assert len(done.stdout.splitlines()) == len(commands)
    (tree / FILE).write_text(text)


def test_it_is_trained(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, where the native kernels are compiled already.
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "clipped.py").write_text(ALGORITHM)
    shutil.copy(tree / FILE, tmp_path / "patched_clip.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KINDS, "reward_clip", import_module("patched_clip").CLIP)  # type: ignore[misc]
    trainer = pearl.compile(SPEC, emulate=True)
    assert trainer.train().status == "done"
    stored = trainer.session.arrays["replay.reward"][:400]
    assert set(stored.tolist()) <= {-1.0, 0.0}
    assert stored.min() == -1.0
    for module in ("own", "own.clipped", "patched_clip"):
        sys.modules.pop(module, None)
