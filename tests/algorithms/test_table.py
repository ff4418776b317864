"""The table of algorithms: all follows from the module; a faulty one is one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pearl
import pearl.algorithms
from pearl.algorithms import ALGORITHMS
from pearl.errors import SpecError
from tests.cli.test_cli import Ran

GOOD = """
from pearl.algorithms.families.replay import build
from pearl.algorithms.initial_values import sizes
from pearl.algorithms.options import STRICT, ReplayOptions
from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

FAMILY, ACTIONS, POLICY = "replay", "discrete", "q"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(ReplayOptions):
    heads: StrictInt = Field(default=3, ge=1, le=9)


def graph(system):
    networks = {"q": (system.env.obs, system.env.actions)}
    return build("mine", sizes(system), networks=networks, policy="q", losses="own.mine:losses")


def initialise(buffers, system, seed):
    buffers["hyper.tau"][:] = 0.1


def losses(nets, batch, hyper): ...
"""
SPACES: dict[str, Any] = {"obs": 4, "actions": 2}
SPEC: dict[str, Any] = {"algorithm": {"name": "own.mine", "env": "E", "spaces": SPACES}}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the module own.mine anew."""
    monkeypatch.syspath_prepend(str(tmp_path))  # type: ignore[no-untyped-call]
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").touch()

    def write(text: str) -> None:
        for name in ("own", "own.mine"):
            sys.modules.pop(name, None)
        (tmp_path / "own/mine.py").write_text(text)

    write(GOOD)
    yield write
    for name in ("own", "own.mine"):
        sys.modules.pop(name, None)


def said(spec: dict[str, Any] = SPEC, **changes: Any) -> str:
    with pytest.raises(SpecError) as refused:
        pearl.load(spec, set=changes)
    (line,) = refused.value.problems
    return line


def test_options_of_a_module_are_checked_by_name(module: Any) -> None:
    system = pearl.load(SPEC, set={"algorithm.heads": 5})
    assert system.algorithm.heads == 5
    assert system.raw["algorithm"]["heads"] == 5
    assert pearl.load(dict(system.raw)).sha256 == system.sha256
    at = "algorithm.heads: given 10; allowed: at most 9"
    assert said(**{"algorithm.heads": 10}).endswith(at)
    assert "unknown key (did you mean heads?)" in said(**{"algorithm.head": 1})


FAULTS = [
    (GOOD.replace("def graph", "def graf"), "own/mine.py is no algorithm: it has no graph;"),
    (GOOD.replace("def losses", "def loss"), "it has no losses;"),
    (GOOD.replace("def graph", "graph = 3\ndef graf"), "it has a graph that is no function;"),
    (GOOD.replace('"replay", "disc', '"replays", "disc'),
     "it has FAMILY 'replays' (allowed are replay, rollout, tabular, own);"),
    (GOOD.replace('"discrete"', '"some"'), "it has ACTIONS 'some' (allowed are discrete, contin"),
    (GOOD.replace("Options(ReplayOptions)", "Options"),
     "it has Options that do not subclass pearl.algorithms.options.ReplayOptions, as those of "),
    (GOOD.replace("@dataclass(frozen=True, kw_only=True, config=STRICT)", ""),
     "it has Options that are no pydantic dataclass (write @pydantic.dataclasses.dataclass("),
    (GOOD.replace("default=3, ", ""), "it has Options without a default for heads;"),
    ("import nothing_of_that_name", "cannot be imported (No module named 'nothing_of_that_name');"),
    ("def", "cannot be imported (invalid syntax (mine.py, line 1));"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), FAULTS)
def test_a_faulty_module_is_one_sentence(module: Any, text: str, sentence: str) -> None:
    module(text)
    line = said()
    assert line.startswith("<spec>: algorithm.name: own.mine: ")
    assert sentence in line


@pytest.mark.parametrize("text", [None, GOOD.replace("def losses", "def loss")])
def test_a_half_registered_algorithm_is_one_sentence_of_every_command(tmp_path, monkeypatch, text):
    names = (*ALGORITHMS, "half")
    for place in ("pearl.algorithms", "pearl.spec.checks", "pearl.spec.trust"):
        monkeypatch.setattr(f"{place}.ALGORITHMS", names, raising=False)
    monkeypatch.setattr(pearl.algorithms, "__path__", [*pearl.algorithms.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pearl.algorithms.half", raising=False)
    lacks = "its module pearl.algorithms.half cannot be imported (No module named"
    if text is not None:
        (tmp_path / "half.py").write_text(text)
        lacks = f"{tmp_path}/half.py is no algorithm: it has no losses"
    spec = tmp_path / "spec.yaml"
    spec.write_text("algorithm: {name: half, env: E, spaces: {obs: 4, actions: 2}}\n")
    for arguments in (
        ["list", "algorithms"],
        *([c, str(spec)] for c in ("check", "plan", "train")),
    ):
        ran = Ran(*arguments)
        assert ran.status == 2, ran.err
        (line,) = ran.err.splitlines()
        assert f"half: {lacks}" in line
    assert pearl.load("dqn_cartpole")  # the others are as whole as before
    monkeypatch.delitem(sys.modules, "pearl.algorithms.half", raising=False)


def test_a_module_of_no_package_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))  # type: ignore[no-untyped-call]
    (tmp_path / "lone.py").write_text("raise RuntimeError")
    line = said(**{"algorithm.name": "lone"})
    assert (
        "lone is a module outside a package: move it into a folder, and name it with a dot" in line
    )
