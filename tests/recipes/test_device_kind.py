"""A device kind is one file and one line: the patch that adds an NPU is planned, shown, trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from pearl_devices import BACKENDS
from tests.cli.test_cli import Ran
from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines

PATCH = "device_kind.patch"
SPEC = {
    "algorithm": {
        "name": "dqn",
        "env": "CartPole-v1",
        "num_envs": 4,
        "hidden": [16],
        "batch_size": 8,
        "learning_starts": 40,
    },
    "platform": {
        "devices": {
            "cpu": "xeon_gold_6326",
            "npu": {
                "kind": "npu",
                "source": "made up",
                "width": 8,
                "peak": "2 TFLOP/s",
                "memory_bandwidth": "50 GB/s",
                "overhead": "500 ns",
                "idle_power": "1 W",
                "active_power": "5 W",
                "figures": {"clock_hz": "500 MHz", "sram_bytes": "8 MiB"},
            },
        },
        "links": [
            {
                "between": ["cpu", "npu"],
                "source": "made up",
                "latency": "100 ns",
                "bandwidth": "100 GB/s",
            }
        ],
    },
    "limits": {"pin": {"learn": "npu"}},
    "train": {"steps": 80, "evaluate_every": 80, "evaluate_episodes": 1, "final_episodes": 1},
}
TESTS = (
    "tests/testing/test_every_key_has_its_contract.py",
    "tests/spec/test_spec.py::test_the_schema_file_is_the_generated_one",
    "tests/devices/test_device_kinds.py::"
    "test_a_device_kind_is_named_in_files_of_device_kinds_alone",
)
COMMANDS = """

from typer.testing import CliRunner
from pearl.cli import app
for words in (["list", "kinds"], ["check", "npu.yaml"], ["plan", "npu.yaml"], ["schema"]):
    ran = CliRunner().invoke(app, [*words, "--json", f"{words[0]}.json"])
    print(ran.stdout, ran.stderr)
    assert ran.exit_code == 0, words
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = copy_of_tree(tmp_path_factory.mktemp("npu"), PATCH)
    (found / "npu.yaml").write_text(yaml.safe_dump(SPEC))
    return found


def test_the_patch_is_one_file_and_one_line() -> None:
    assert changed_lines(PATCH) == {
        "devices/pearl_devices/npu.py": 0,
        "devices/pearl_devices/__init__.py": 1,
    }


@pytest.mark.slow
def test_it_passes_the_tests_of_device_kinds_with_no_test_of_its_own(tree: Path) -> None:
    words = ("-q", "-p", "no:cacheprovider", "--write", "-k", "Npu or every or schema or named")
    done = python_in(tree, "-m", "pytest", *words, *TESTS)
    assert done.returncode == 0, done.stdout


def test_it_is_planned_checked_listed_and_in_the_schema(tree: Path) -> None:
    done = python_in(tree, "-c", COMMANDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A simulated NPU: networks on an array of multiply-add tiles" in done.stdout
    plan = json.loads((tree / "plan.json").read_text())
    placed = {t["task"]: t for t in plan["tasks"]}
    assert placed["learn"]["device"] == "npu"
    assert (placed["learn"]["width"], placed["learn"]["width_unit"]) == (8, "tiles")
    assert placed["learn"]["rung"] == "closed_form"
    assert '"npu"' in (tree / "schema.json").read_text()


def test_its_plans_are_trained_by_emulation_and_reported(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, where the native kernels are compiled already.
    shutil.copy(tree / "devices" / "pearl_devices" / "npu.py", tmp_path / "patched_npu.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKENDS, "npu", "patched_npu")
    ran = Ran("train", "--emulate", tree / "npu.yaml", "--out", tmp_path / "run")
    assert ran.status == 0, ran.err
    text = Ran("report", tmp_path / "run").out
    assert "NPU (simulated)" in text
    assert "simulated: the times and rates of this run come from the clock of a model" in text
