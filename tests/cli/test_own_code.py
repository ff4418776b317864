"""Faulty code of the user's own is told in one sentence that names it, and never as a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import pearl
from pearl.cli.application import FAILED, WRONG
from pearl.spec.user_code import UserCodeError, reporting_user_errors
from pearl_devices.base import EnvironmentFailed
from tests.cli.test_cli import Ran

SOUND = (Path(__file__).parents[2] / "examples" / "own_algorithm.py").read_text()
RAISING = '    raise IndexError("no such thing")'
FAULTS = {
    "at_import": ("import pearl\n", 'raise IndexError("no such thing")\n'),
    "graph": ("def graph(system):", f"def graph(system):\n{RAISING}"),
    "initialise": ("def initialise(buffers, system, seed):", None),
    "losses": ("    import torch\n", f"{RAISING}\n"),
}
"""Where code fails → the text of a sound algorithm, and what stands in its place."""


def package_of(spec: Path) -> str:
    """The package of the algorithm that a spec names."""
    name: str = yaml.safe_load(spec.read_text())["algorithm"]["name"]
    return name.partition(".")[0]


@pytest.fixture
def spec(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of an algorithm that fails at `request.param`."""
    package = f"faulty_{request.param}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    found, put = FAULTS[request.param]
    assert found in SOUND
    text = SOUND.replace(found, put or f"{found}\n{RAISING}")
    text = text.replace("examples.own_algorithm", f"{package}.faulty")
    (tmp_path / package / "faulty.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    train = {"steps": 3000, "evaluate_every": 0, "final_episodes": 0}
    algorithm = {"name": f"{package}.faulty", "env": "CartPole-v1", "num_envs": 4}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({"algorithm": algorithm, "platform": "cpu_gpu", "train": train}))
    return path


@pytest.mark.parametrize(
    ("spec", "planned"),
    [("at_import", False), ("graph", False), ("initialise", True), ("losses", True)],
    indirect=["spec"],
)
def test_an_algorithm_that_fails_is_named_with_the_line(
    spec: Path, planned: bool, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for arguments in (["check", "--import"], ["plan"], ["train", "--emulate", "--out", str(out)]):
        ran = Ran(*arguments, spec)
        assert "Traceback" not in ran.err
        if planned and arguments[0] != "train":
            assert (ran.status, ran.err) == (0, "")
            continue
        assert ran.status in (FAILED, WRONG)
        (line,) = [each for each in ran.err.splitlines() if each.startswith("error:")]
        assert "no such thing" in line
        assert "faulty" in line
        if "at_import" not in package_of(spec):
            assert "IndexError: no such thing" in line
            assert f"{tmp_path / package_of(spec)}" in line
            assert "/faulty.py, line " in line


@pytest.mark.parametrize("spec", ["losses"], indirect=True)
def test_a_run_that_its_own_losses_end_is_a_failed_run_with_its_files(
    spec: Path, tmp_path: Path
) -> None:
    run = pearl.compile(spec, emulate=True).train(out=tmp_path / "run")
    assert run.status == "failed"
    assert "a call fails: IndexError: no such thing" in run.message
    assert (tmp_path / "run" / "run.json").exists()


def test_an_error_is_blamed_on_no_spec_that_names_no_code() -> None:
    shipped = pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"})
    with pytest.raises(ZeroDivisionError), reporting_user_errors(shipped, "a call"):
        _ = 1 // 0
    own = pearl.load({"algorithm": {"name": "examples.own_algorithm", "env": "CartPole-v1"}})
    with pytest.raises(UserCodeError, match=r"a call fails: ZeroDivisionError: .*, line "):  # noqa: SIM117
        with reporting_user_errors(own, "a call"):
            _ = 1 // 0
    with pytest.raises(EnvironmentFailed), reporting_user_errors(own, "a call"):
        raise EnvironmentFailed("reset fails")
