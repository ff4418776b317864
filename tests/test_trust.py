"""Code that specs, run folders and plans name: when it is imported, and when it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pearl
from pearl.errors import SpecError
from pearl_devices.primitives import gym_envs
from tests.test_cli import Ran
from tests.test_schemas import problems

TRAP = """
import pathlib
pathlib.Path({marker!r}).touch()
from subprocess import getoutput as renamed
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv as Make
gymnasium.register("Trap-v0", entry_point=Make, max_episode_steps=50)
def network(inputs, outputs):
    import torch
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(outputs))
"""
STOCK = ("os:abort", "builtins:quit", "signal:pause", "http.server:test", "builtins:breakpoint")


class Trap:
    """A package whose import leaves a file behind."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "ran"
        package = folder / "trap_package"
        package.mkdir()
        (package / "__init__.py").write_text(TRAP.format(marker=str(self.marker)))
        (package / "algorithm.py").touch()

    @property
    def sprung(self) -> bool:
        return self.marker.exists()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    import gymnasium

    monkeypatch.syspath_prepend(tmp_path)
    yield Trap(tmp_path)
    gymnasium.registry.pop("Trap-v0", None)
    for name in [n for n in sys.modules if n.partition(".")[0] == "trap_package"]:
        del sys.modules[name]


def written(folder: Path, **algorithm: Any) -> Path:
    """A spec file on an emulated platform."""
    small = {"name": "dqn", "env": "CartPole-v1", "num_envs": 2, "hidden": [8], "batch_size": 8}
    train = {"steps": 120, "evaluate_every": 0, "final_episodes": 1}
    spec = {"algorithm": {**small, "learning_starts": 20, **algorithm}, "train": train}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({**spec, "platform": "cpu_gpu"}))
    return path


NAMES = {
    "algorithm.env": [{"env": "trap_package:Make"}, {"env": "trap_package:Trap-v0"}],
    "algorithm.name": [{"name": "trap_package.algorithm"}],
    "algorithm.network": [{"network": "trap_package:network"}],
}


@pytest.mark.parametrize(
    ("key", "given"), [(key, given) for key, all_ in NAMES.items() for given in all_]
)
def test_check_imports_nothing_that_a_spec_names_and_says_so(
    trap: Trap, tmp_path: Path, key: str, given: dict[str, str]
) -> None:
    spec = written(tmp_path, **given)
    ran = Ran("check", spec, "--json", "-")
    assert ran.status == 0, ran.err
    found = ran.object()
    assert problems(found, "check") == []
    assert [each["key"] for each in found["not_looked_at"]] == [key]
    assert found["not_looked_at"][0]["given"] == next(iter(given.values()))
    said = Ran("check", spec).out
    assert f"not looked at: {key} {next(iter(given.values()))}: " in said
    assert "--import" in said
    assert not trap.sprung
    Ran("check", spec, "--import")
    assert trap.sprung


def test_check_looks_at_environments_of_gymnasium_and_leaves_nothing_out(tmp_path: Path) -> None:
    found = Ran("check", written(tmp_path), "--json", "-").object()
    assert found["not_looked_at"] == []
    ran = Ran("check", written(tmp_path, env="Pendulum-v1"))
    assert ran.status == 2
    assert "Pendulum-v1 has continuous actions; dqn needs discrete ones" in ran.err


def test_check_with_import_compares_stated_spaces_with_the_environment(
    trap: Trap, tmp_path: Path
) -> None:
    right = written(tmp_path, env="trap_package:Make", spaces={"obs": 4, "actions": 2})
    assert "states, and whether" in Ran("check", right).out
    assert not trap.sprung
    ran = Ran("check", right, "--import", "--json", "-")
    assert ran.status == 0, ran.err
    assert ran.object()["not_looked_at"] == []
    wrong = written(tmp_path, env="trap_package:Make", spaces={"obs": 3, "actions": 2})
    ran = Ran("check", wrong, "--import")
    assert ran.status == 2
    assert ran.err == "error: algorithm.spaces: given obs 3; trap_package:Make has 4\n"
    wrong = written(tmp_path, name="trap_package.algorithm")
    assert "it has no POLICY, LEARNING" in Ran("check", wrong, "--import").err


def test_a_gymnasium_id_with_a_module_is_one_for_training_too(trap: Trap) -> None:
    for envs in (2, gym_envs.BATCHED):
        made = gym_envs.make("trap_package:Trap-v0", {}, envs)
        assert isinstance(made, list)
        assert [str(env.spec.id) for env in made if env.spec] == ["Trap-v0"] * envs
    assert trap.sprung


@pytest.mark.parametrize("command", ["check", "plan", "train"])
def test_nothing_of_the_standard_library_is_called(tmp_path: Path, command: str) -> None:
    marker = tmp_path / "ran"
    spec = written(tmp_path, env="subprocess:getoutput", env_args={"cmd": f"touch {marker}"})
    ran = Ran(command, spec)
    assert ran.status == 2
    assert "algorithm.env: given 'subprocess:getoutput'; subprocess is a module of" in ran.err
    assert ran.err.count("\n") == 1
    assert not marker.exists()


@pytest.mark.parametrize("given", STOCK)
@pytest.mark.parametrize("command", ["check", "plan"])
def test_what_would_end_or_hang_the_process_is_one_line(
    tmp_path: Path, command: str, given: str
) -> None:
    for spec in (written(tmp_path, env=given), written(tmp_path, network=given)):
        ran = Ran(command, spec)
        assert ran.status == 2
        assert f"given '{given}'; {given.partition(':')[0]} is a module of Python's" in ran.err
        assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["antigravity:X-v0", "this:make"])
def test_modules_of_the_standard_library_are_not_even_imported(name: str) -> None:
    with pytest.raises(SpecError, match="is a module of Python's standard library"):
        pearl.load({"algorithm": {"name": "dqn", "env": name}})
    with pytest.raises(SpecError, match=r"algorithm.name: given 'idlelib.idle'; idlelib.idle is a"):
        pearl.load({"algorithm": {"name": "idlelib.idle", "env": "CartPole-v1"}})
    assert not {"antigravity", "this", "idlelib.idle"} & set(sys.modules)


def test_a_callable_of_the_standard_library_under_another_name_is_refused(
    trap: Trap, tmp_path: Path
) -> None:
    args = {"cmd": f"touch {tmp_path / 'called'}"}
    with pytest.raises(SpecError, match="subprocess is a module of Python's standard library"):
        pearl.load({"algorithm": {"name": "dqn", "env": "trap_package:renamed", "env_args": args}})
    assert trap.sprung
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise SystemExit(3)", "it ends the process (SystemExit: 3)"),
        ("class Odd(Exception): ...\nraise Odd('no such\\nday')", "no such day"),
        ("def __getattr__(name): raise OSError('locked')", "locked"),
        ("make = 3", "it is of type int, which is no callable"),
        ("def make(): raise SystemExit", "it ends the process (SystemExit)"),
    ],
)
def test_a_module_may_raise_anything_and_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    (tmp_path / "odd_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_module", raising=False)
    for command in (["plan"], ["check", "--import"]):
        ran = Ran(*command, written(tmp_path, env="odd_module:make"))
        sys.modules.pop("odd_module", None)
        assert ran.status == 2
        assert f"'odd_module:make' cannot be built: {says}" in ran.err
        assert ran.err.count("\n") == 1
