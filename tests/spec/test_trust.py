"""Code that specs, run folders and plans name: when it is imported, and when it is not."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

import pearl
from pearl.errors import SpecError
from pearl.spec import trust
from pearl.spec.reading import load_static
from pearl_devices import user_imports
from pearl_devices.primitives.envs import gym_make
from tests.cli.test_cli import Ran
from tests.examples import example_run
from tests.schemas.test_schemas import problems

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

    def reset(self) -> None:
        """As if it had never been imported."""
        import gymnasium

        self.marker.unlink(missing_ok=True)
        gymnasium.registry.pop("Trap-v0", None)
        for name in [n for n in sys.modules if n.partition(".")[0] == "trap_package"]:
            del sys.modules[name]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    monkeypatch.syspath_prepend(tmp_path)
    found = Trap(tmp_path)
    yield found
    found.reset()


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
def test_check_imports_nothing_that_a_spec_names_and_says_so(trap, tmp_path, key, given):
    spec = written(tmp_path, **given)
    ran = Ran("check", spec, "--json", "-")
    assert ran.status == 0, ran.err
    found = ran.object()
    assert problems(found, "check") == []
    assert [each["key"] for each in found["not_looked_at"]] == [key]
    assert found["not_looked_at"][0]["given"] == next(iter(given.values()))
    said = Ran("check", spec).out
    assert f"not checked: {key} {next(iter(given.values()))}: " in said
    assert "--import" in said
    assert not trap.sprung
    ran = Ran("check", spec, "--import")
    assert trap.sprung, ran.err


def test_check_looks_at_environments_of_gymnasium_and_leaves_nothing_out(tmp_path: Path) -> None:
    found = Ran("check", written(tmp_path), "--json", "-").object()
    assert found["not_looked_at"] == []
    ran = Ran("check", written(tmp_path, env="Pendulum-v1"))
    assert ran.status == 2
    assert "Pendulum-v1 has continuous actions; dqn needs discrete ones" in ran.err


def test_check_with_import_compares_stated_spaces_with_the_environment(trap, tmp_path):
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
    named = written(tmp_path, env="CartPole-v1", spaces={"obs": 5, "actions": 2})
    said = "error: algorithm.spaces: given obs 5; CartPole-v1 has 4\n"
    assert Ran("check", named, "--import").err == said
    wrong = written(tmp_path, name="trap_package.algorithm")
    assert "it has no POLICY, graph" in Ran("check", wrong, "--import").err


def test_a_gymnasium_id_with_a_module_is_one_for_training_too(trap: Trap) -> None:
    for envs in (2, gym_make.BATCHED):
        made = gym_make.make("trap_package:Trap-v0", {}, envs)
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
def test_what_would_end_or_hang_the_process_is_one_line(tmp_path, command, given):
    for spec in (written(tmp_path, env=given), written(tmp_path, network=given)):
        ran = Ran(command, spec)
        assert ran.status == 2
        assert f"given '{given}'; {given.partition(':')[0]} is a module of Python's" in ran.err
        assert ran.err.count("\n") == 1


def test_a_partial_call_counts_as_code_of_the_function_that_it_calls(tmp_path, monkeypatch):
    (tmp_path / "partial_calls.py").write_text(
        "from functools import partial\n"
        "import subprocess\n"
        "def own(a, b): return a + b\n"
        "one = partial(own, 1)\n"
        "foreign = partial(partial(subprocess.run, 'true'), shell=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert user_imports.import_function("partial_calls:one")(2) == 3
    with pytest.raises(ValueError, match="subprocess is a module of Python's standard library"):
        user_imports.import_function("partial_calls:foreign")


@pytest.mark.parametrize("name", ["antigravity:X-v0", "this:make"])
def test_modules_of_the_standard_library_are_not_even_imported(name: str) -> None:
    with pytest.raises(SpecError, match="is a module of Python's standard library"):
        pearl.load({"algorithm": {"name": "dqn", "env": name}})
    with pytest.raises(SpecError, match=r"algorithm.name: given 'idlelib.idle'; idlelib.idle is a"):
        pearl.load({"algorithm": {"name": "idlelib.idle", "env": "CartPole-v1"}})
    for each in (
        user_imports.register_env,
        user_imports.import_function,
        user_imports.import_user_module,
    ):  # of kernels' programs, too
        with pytest.raises(ValueError, match="is a module of Python's standard library"):
            each(name)
    assert not {"antigravity", "this", "idlelib.idle"} & set(sys.modules)


def test_a_callable_of_the_standard_library_under_another_name_is_refused(trap, tmp_path):
    args = {"cmd": f"touch {tmp_path / 'called'}"}
    with pytest.raises(SpecError, match="subprocess is a module of Python's standard library"):
        pearl.load({"algorithm": {"name": "dqn", "env": "trap_package:renamed", "env_args": args}})
    assert trap.sprung
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("text", "says"),
                         [("raise SystemExit(3)", "it ends the process (SystemExit: 3)"),
                          ("class Odd(Exception): ...\nraise Odd('no such\\nday')", "no such day"),
                          ("def __getattr__(name): raise OSError('locked')", "locked"),
                          ("make = 3", "it is of type int, which is no callable"),
                          ("def make(): raise SystemExit",
                           "it ends the process (SystemExit)")])  # fmt: skip
def test_a_module_may_raise_anything_and_gives_one_line(tmp_path, monkeypatch, text, says):
    (tmp_path / "odd_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_module", raising=False)
    for command in (["plan"], ["check", "--import"]):
        ran = Ran(*command, written(tmp_path, env="odd_module:make"))
        sys.modules.pop("odd_module", None)
        assert ran.status == 2
        assert f"'odd_module:make' cannot be built: {says}" in ran.err
        assert ran.err.count("\n") == 1


WORDS = ("nowhere", "tests", "numpy", "zeros", "__main__", "__class__", "CartPole")
ODD_NAMES = st.lists(st.sampled_from([*"a.:/ _-\0\né：", "..", "::", "-v0", "%s", "\x1b[31m",
                                      "\u202e", *WORDS]) | st.text(max_size=3),
                     min_size=1, max_size=6).map("".join)  # fmt: skip


@given(ODD_NAMES, ODD_NAMES | st.just("dqn"), ODD_NAMES | st.none(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_odd_names_are_lines_or_not_looked_at(env, name, network, stated):
    spec: dict[str, Any] = {"name": name, "env": env, "network": network}
    if stated:
        spec["spaces"] = {"obs": 3, "actions": 2}
    load_static(
        {"algorithm": {"name": "dqn", "env": "CartPole-v1"}}
    )  # imports what is always needed
    before = set(sys.modules)
    try:
        found = load_static({"algorithm": spec})
    except SpecError as error:
        said = list(error.problems)
    else:
        said = [str(each) for each in trust.find_named_code(found.raw)]
        assert len(said) == (name != "dqn") + (":" in env) + (network is not None)
    assert all(line.isprintable() for line in said), said
    assert {m for m in set(sys.modules) - before if not m.startswith("pearl.")} == set()


SPACES = """
import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box, Discrete
def make(observation=Box(-1, 1, (3,)), action=Box(-1, 1, (2,))):
    env = Env()
    env.observation_space, env.action_space = observation, action
    return env
def no_space(): return make(None)
def a_class(): return make(Box)
def nothing_seen(): return make(Box(-1, 1, (0,)))
def nothing_done(): return make(action=Box(-1, 1, (0,)))
def no_action(): return make(action=None)
def no_width(): return make(action=Box(np.zeros(2), np.array([1, 0]), dtype=np.float64))
def no_number():
    env = make()
    env.action_space.low[0] = np.nan
    return env
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [("no_space", "observations are NoneType, which cannot be read as numbers"),
     ("a_class", "observations are type, which cannot be read as numbers"),
     ("nothing_seen", "observations are Box, which is empty"),
     ("nothing_done", "a Box of one axis is needed"),
     ("no_action",
      "actions are None; Discrete, MultiDiscrete, MultiBinary or a Box of one axis is needed"),
     ("no_width", "bounds are [0.0, 0.0] and [1.0, 0.0]; each lower bound must be below"),
     ("no_number", "bounds are [nan, -1.0] and [1.0, 1.0]; each lower bound must be below")],
)  # fmt: skip
def test_odd_spaces_are_lines(tmp_path, monkeypatch, name, says):
    (tmp_path / "odd_spaces.py").write_text(SPACES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_spaces", raising=False)
    with pytest.raises(SpecError) as refused:
        pearl.load({"algorithm": {"name": "ppo", "env": f"odd_spaces:{name}"}})
    sys.modules.pop("odd_spaces", None)
    (line,) = refused.value.problems
    assert line.startswith("<spec>: algorithm.env: ")
    assert says in line


# Run folders


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder that vouches for nothing yet."""
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run_of(spec: Path) -> Path:
    """A run folder as `train` leaves it, but for the training."""
    folder = spec.parent / "run"
    trainer = pearl.compile(spec, emulate=True)
    trainer.session.save_run(folder)
    trust.record_trusted(trainer.system.raw)
    trainer.plan.save(folder / "plan.json")
    run = example_run(trainer.plan, platform=trainer.system.platform)
    run.save(folder / "run.json")
    (folder / "spec.yaml").write_text(yaml.safe_dump(dict(trainer.system.raw)))
    return folder


def strangers(folder: Path, cache: Path, trap: Trap | None = None, **algorithm: object) -> None:
    """Make a run folder that of somebody else, whose spec has other entries than ours."""
    for file in (cache / "specs").glob("*"):
        file.unlink()
    if trap:
        trap.reset()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as stored:
            about = json.loads(stored.metadata()["pearl"])
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        about["spec"]["algorithm"] |= algorithm
        save_file(arrays, file, metadata={"pearl": json.dumps(about)})
    (folder / "spec.yaml").write_text(yaml.safe_dump(about["spec"]))


def commands(folder: Path, spec: Path) -> dict[str, list[object]]:
    return {
        "eval": ["eval", folder, "--episodes", 1],
        "export": ["export", folder, folder / "policy"],
        "resume": ["train", spec, "--out", folder, "--resume", "--emulate"],
    }


@pytest.mark.parametrize("command", ["eval", "export", "resume"])
def test_nothing_that_a_strangers_run_names_is_imported_without_trust(
    trap: Trap, tmp_path: Path, cache: Path, command: str
) -> None:
    spec = written(tmp_path, env="trap_package:Make")
    folder = run_of(spec)
    strangers(folder, cache, trap)
    ran = Ran(*commands(folder, spec)[command])
    assert ran.status == 2
    assert "its spec names code" in ran.err
    assert "algorithm.env trap_package:Make" in ran.err
    assert "--trust" in ran.err
    assert not trap.sprung
    assert not (folder / "policy").exists()


@pytest.mark.parametrize("command", ["eval", "export", "resume"])
def test_with_trust_it_is_imported_but_nothing_of_the_standard_library(
    trap: Trap, tmp_path: Path, cache: Path, command: str
) -> None:
    spec = written(tmp_path, env="trap_package:Make")
    folder = run_of(spec)
    strangers(folder, cache, trap)
    called = commands(folder, spec)
    if command != "resume":
        ran = Ran(*called[command], "--trust")
        assert ran.status == 0, ran.err
        assert trap.sprung
    marker = tmp_path / "called"
    given = {"env": "subprocess:getoutput", "env_args": {"cmd": f"touch {marker}"}}
    strangers(folder, cache, trap, **given)
    for option in ([], ["--trust"]):
        ran = Ran(*commands(folder, folder / "spec.yaml")[command], *option)
        assert ran.status == 2
        assert "subprocess" in ran.err
        assert ran.err.count("\n") == 1
    assert not marker.exists()


def test_a_run_of_ones_own_and_one_that_names_no_code_need_no_trust(trap, tmp_path, cache):
    folder = run_of(written(tmp_path, env="trap_package:Make"))
    trap.reset()
    assert Ran("export", folder, folder / "policy").status == 0
    assert trap.sprung
    folder = run_of(written(tmp_path))
    strangers(folder, cache)
    assert Ran("export", folder, folder / "policy").status == 0
    folder = run_of(written(tmp_path, env="trap_package:Make"))
    strangers(folder, cache, trap)
    with pytest.raises(SpecError, match="trust=True"):
        pearl.Trainer.load(folder)
    assert not trap.sprung
    assert pearl.Trainer.load(folder, trust=True).system.env.id == "trap_package:Make"


def test_training_notes_the_spec_before_anything_is_written(trap, tmp_path, cache, monkeypatch):
    trainer = pearl.compile(written(tmp_path, env="trap_package:Make"), emulate=True)
    monkeypatch.setattr("pearl.training.trainer.run_training", lambda run: None)
    trainer.train(out=tmp_path / "run")
    (noted,) = (cache / "specs").iterdir()
    assert noted.name == trainer.system.sha256
    assert stat.S_IMODE(noted.stat().st_mode) == 0o600
    assert stat.S_IMODE(noted.parent.stat().st_mode) == 0o700


def test_report_imports_nothing(trap: Trap, tmp_path: Path, cache: Path) -> None:
    folder = run_of(written(tmp_path, env="trap_package:Make"))
    strangers(folder, cache, trap)
    ran = Ran("report", folder)
    assert ran.status == 0, ran.err
    assert "DQN on trap_package:Make" in ran.out
    assert not trap.sprung
    marker = tmp_path / "called"
    given = {"env": "subprocess:getoutput", "env_args": {"cmd": f"touch {marker}"}}
    strangers(folder, cache, **given)
    assert Ran("report", folder).status == 2
    assert not marker.exists()


def test_text_in_place_of_a_checkpoints_spec_is_no_path_to_another(trap, tmp_path, cache):
    spec = written(tmp_path, env="trap_package:Make")
    folder = run_of(spec)
    trap.reset()
    file = folder / "checkpoint.safetensors"
    with safe_open(file, "numpy") as stored:
        about = json.loads(stored.metadata()["pearl"])
    save_file({}, file, metadata={"pearl": json.dumps({**about, "spec": str(spec)})})
    with pytest.raises(SpecError, match="spec is"):
        pearl.Trainer.load(folder, trust=True)
    assert not trap.sprung


SPEC = {"algorithm": {"name": "dqn", "env": "my_package:make"}}


def test_digests_are_of_every_key_and_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "KEPT", 3)
    specs = [{**SPEC, "name": str(n)} for n in range(5)]
    for n, spec in enumerate(specs):
        assert not trust.is_trusted(spec)
        trust.record_trusted(spec)
        os.utime(cache / "specs" / trust.digest(spec), (n, n))
    trust.record_trusted(specs[2])  # once more: now the latest
    trust.record_trusted({**SPEC, "name": "last"})
    assert [trust.is_trusted(spec) for spec in specs] == [False, False, True, False, True]
    trust.record_trusted({"algorithm": {"name": "dqn", "env": "CartPole-v1"}})
    assert len(list((cache / "specs").iterdir())) == 3


def test_a_folder_that_others_can_write_vouches_for_nothing(cache: Path, tmp_path: Path) -> None:
    trust.record_trusted(SPEC)
    trust.require_trusted(SPEC, "run", trust=False)
    folder = cache / "specs"
    folder.chmod(0o770)
    with pytest.raises(SpecError, match="others may write it"):
        trust.require_trusted(SPEC, "run", trust=False)
    with pytest.warns(RuntimeWarning, match="cannot note that this spec is yours"):
        trust.record_trusted(SPEC)
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="is no folder"):
        trust.require_trusted(SPEC, "run", trust=False)


def test_nor_does_a_folder_of_another_user(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust.record_trusted(SPEC)
    assert trust.is_trusted(SPEC)
    if os.geteuid() == 0:  # what root owns is believed
        os.chown(cache / "specs", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not trust.is_trusted(SPEC)
    with pytest.raises(SpecError, match="it belongs to user"):
        trust.require_trusted(SPEC, "run", trust=False)


# Plans


def test_a_plan_names_nothing_that_is_imported(trap: Trap, tmp_path: Path) -> None:
    """Whatever text stands in a plan, it is compared with names that there are, or shown."""
    spec = written(tmp_path)
    plan = pearl.plan(spec).to_json()

    def texts(value: Any, *way: str | int) -> Iterator[tuple[str | int, ...]]:
        if isinstance(value, str):
            yield way
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield from texts(inner, *way, key)
        for at, inner in enumerate(value) if isinstance(value, list) else ():
            yield from texts(inner, *way, at)

    ways = {tuple(key for key in way if isinstance(key, str)): way for way in texts(plan)}
    assert len(ways) > 15
    for way in ways.values():
        for text in ("trap_package:Make", "trap_package"):
            changed: Any = json.loads(json.dumps(plan))
            inner = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = text
            file = tmp_path / "plan.json"
            file.write_text(json.dumps(changed))
            try:
                pearl.compile(spec, plan=file, emulate=True)
            except SpecError:
                continue
    assert not trap.sprung
