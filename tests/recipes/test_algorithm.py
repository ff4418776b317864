"""An algorithm is one file and one line, or by its module path one file, as patches of the tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl.testing import AlgorithmContract
from tests.recipes.copy_of_tree import copy_of_tree, python_in
from tests.recipes.patch_size import changed_lines

SPEC: dict[str, Any] = {
    "algorithm": {
        "name": "expected_sarsa",
        "env": "CartPole-v1",
        "num_envs": 4,
        "hidden": [16],
        "batch_size": 8,
        "learning_starts": 40,
        "epsilon": 0.2,
    },
    "platform": {"devices": {"cpu": "xeon_gold_6326"}},
    "train": {"steps": 200, "evaluate_every": 0, "final_episodes": 1},
}
COMMANDS = """
from typer.testing import CliRunner
from pearl.cli import app
for words in (["list", "algorithms"], ["check", "spec.yaml"], ["plan", "spec.yaml"],
              ["train", "--emulate", "spec.yaml"], ["schema", "--json", "schema.json"]):
    ran = CliRunner().invoke(app, words)
    print(ran.stdout, ran.stderr)
    assert ran.exit_code == 0, words
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = copy_of_tree(tmp_path_factory.mktemp("named"), "algorithm.patch")
    (found / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    return found


def test_a_named_algorithm_is_one_file_and_one_line() -> None:
    assert changed_lines("algorithm.patch") == {
        "pearl/algorithms/__init__.py": 1,
        "pearl/algorithms/expected_sarsa.py": 0,
    }
    assert changed_lines("algorithm_by_path.patch") == {}


@pytest.mark.slow
def test_it_is_listed_checked_planned_trained_and_in_the_schema(tree: Path) -> None:
    done = python_in(tree, "-c", COMMANDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Expected SARSA with a network (van Seijen et al. 2009)" in done.stdout
    assert '"const": "expected_sarsa"' in (tree / "schema.json").read_text()


@pytest.mark.slow
def test_what_is_known_of_it_is_in_its_file_and_its_contract_is_collected(tree: Path) -> None:
    tests = ["tests/algorithms/test_table.py"]
    done = python_in(tree, "-m", "pytest", "-q", *tests)
    assert done.returncode == 0, done.stdout
    tests = ["--collect-only", "tests/algorithms/test_contract.py"]
    done = python_in(tree, "-m", "pytest", *tests)
    assert "TestExpectedSarsa::" in done.stdout


class Module(AlgorithmContract):
    """An algorithm of a patch, in this process, where the native kernels are compiled already."""

    @pytest.fixture(autouse=True)
    def path(self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        package, _, name = self.name.partition(".")
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / f"{name}.py").write_text(self.source(tree, tmp_path).read_text())
        monkeypatch.syspath_prepend(tmp_path)
        yield
        for each in (package, self.name):
            sys.modules.pop(each, None)

    def source(self, tree: Path, tmp_path: Path) -> Path:
        raise NotImplementedError


class TestExpectedSarsaByPath(Module):
    """The very file that goes by a short name goes by its path."""

    name = "by_path.expected_sarsa"

    def source(self, tree: Path, tmp_path: Path) -> Path:
        return tree / "pearl" / "algorithms" / "expected_sarsa.py"


class TestReinforceByPath(Module):
    name = "by_path.reinforce"

    def source(self, tree: Path, tmp_path: Path) -> Path:
        return copy_of_tree(tmp_path, "algorithm_by_path.patch") / "mine" / "reinforce.py"
