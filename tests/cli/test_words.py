"""Words of the command line: overrides after the spec, templates, and the right name for a wrong
one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pearl
from pearl.algorithms import ALGORITHMS
from pearl.spec.template import init_text
from tests.cli.test_cli import SPEC, Ran


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def pearl_says(*words: str) -> tuple[int, str, str]:
    ran = Ran(*words)
    return ran.status, ran.out, ran.err


def test_keys_after_the_spec_are_laid_over_it_and_set_comes_after_them(spec: Path) -> None:
    words = ("check", str(spec), "algorithm.env=Acrobot-v1", "name=one", "--json", "-")
    status, out, _ = pearl_says(*words, "--set", "name=two")
    assert status == 0
    found = json.loads(out)
    assert (found["env"], found["name"]) == ("Acrobot-v1", "two")
    status, _, err = pearl_says("check", str(spec), "algorithm.batch=3")
    assert status == 2
    assert "did you mean batch_size?" in err


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_template_of_every_algorithm_loads_as_it_is(
    name: str, full: bool, tmp_path: Path
) -> None:
    file = tmp_path / "spec.yaml"
    words = ("init", str(file), "--algorithm", name, *(["--full"] if full else []))
    assert pearl_says(*words)[0] == 0
    text = file.read_text()
    assert text == init_text(name, full=full)
    assert full or text.count("\n") <= 12
    assert pearl.load(file).algorithm.name == name


def test_a_template_has_the_environment_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    words = ("init", str(file), "--algorithm", "PPO")
    status, _, err = pearl_says(*words)
    assert status == 2
    assert "did you mean ppo?" in err
    assert not file.exists()
    assert pearl_says("init", str(file), "--algorithm", "ppo", "--env", "Pendulum-v1")[0] == 0
    assert pearl.load(file).env.id == "Pendulum-v1"


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("gamma", 0.9, "did you mean discount?"),
        ("lr", 0.1, "did you mean learning_rate?"),
        ("n_steps", 3, "did you mean n_step?"),
        ("buffer_size", 9, r"did you mean algorithm\.replay\.capacity?"),
        ("total_timesteps", 9, r"did you mean train\.steps?"),
        ("capacity", 9, r"did you mean algorithm\.replay\.capacity?"),
        ("device", "cuda", r"did you mean platform or limits\.devices?"),
        ("hidden", 256, r"a list, such as \[256\]"),
        ("hidden", "64,64", r"a list, such as \[64, 64\]"),
        ("learning_rate", "fast", "allowed: a number, or a mapping"),
    ],
)
def test_a_key_as_others_call_it_is_answered_by_the_right_one(key, value, right) -> None:
    given = {"name": "dqn", "env": "CartPole-v1", key: value}
    with pytest.raises(pearl.SpecError, match=right.replace("?", r"\?")):
        pearl.load({"algorithm": given})


def test_a_shipped_spec_that_is_no_file_here_is_named() -> None:
    with pytest.raises(pearl.SpecError, match="the shipped spec is called dqn_cartpole"):
        pearl.load("configs/nowhere/dqn_cartpole.yaml")


def test_callbacks_by_options(spec: Path, tmp_path: Path) -> None:
    words = ("train", str(spec), "train.steps=900", "--emulate", "--out", str(tmp_path / "run"))
    log = tmp_path / "log.csv"
    status, out, err = pearl_says(*words, "--stop-at-return", "1", "--log", f"csv={log}")
    assert status == 0, err
    assert "stopped by StopAtReturn at env step 300" in out
    assert "eval_mean" in log.read_text()


def test_the_working_folder_is_looked_in_last_and_for_named_modules_alone(tmp_path: Path) -> None:
    for name in ("numpy", "json", "gymnasium", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working folder')")
    (tmp_path / "my_swing.py").write_text(
        "import gymnasium\nprint('imported')\n"
        "def make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    spaces = "  spaces: {obs: 4, actions: 2}\n"
    own = SPEC.replace("env: CartPole-v1\n", f"env: my_swing:make\n{spaces}")
    (tmp_path / "own.yaml").write_text(own)
    path = os.pathsep.join(p for p in sys.path if p)

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        code = [sys.executable, "-P", "-c", "from pearl.cli import main; main()", *words]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(code, cwd=tmp_path, env=env, capture_output=True, text=True)

    checked = ran("check", "own.yaml")
    assert checked.returncode == 0, checked.stderr
    assert "imported" not in checked.stdout + checked.stderr
    done = ran("check", "own.yaml", "--import")
    assert done.returncode == 0, done.stderr
    assert "imported" in done.stderr  # prints of the user's code are no answer
    assert "of the working folder" not in checked.stderr + done.stderr


def test_a_run_that_ends_before_learning_starts_is_told_so() -> None:
    keys = ["train.steps=1e3", "algorithm.learning_starts=5000"]
    assert "it takes no gradient step" in pearl_says("check", "dqn_cartpole", *keys)[1]
    _, enough, _ = pearl_says("check", "dqn_cartpole", "train.steps=5001", keys[1])
    assert "gradient step" not in enough
