"""A policy as a torch state_dict gives the outputs that it had here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import pearl
from examples.catch_image import cnn
from pearl.algorithms.evaluation import acting_of
from pearl.algorithms.interface import policy_states
from pearl.errors import SpecError
from pearl.spec.user_code import build_graph
from pearl.training.policy import Policy
from pearl.training.policy_export import description, export
from pearl.training.trainer import Trainer
from pearl_devices import buffers
from tests.schemas.test_schemas import problems

CASES: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", "normalise": {"observations": True}},
    "sac": {"env": "Pendulum-v1"},
    "ppo": {"env": "CartPole-v1"},
    "a2c": {"env": "Pendulum-v1"},
}


def trained(name: str, out: Path | None = None, **algorithm: Any) -> Trainer:
    small = {"name": name, "num_envs": 2, "hidden": [16, 8], **algorithm}
    if name in ("dqn", "sac"):
        small |= {"batch_size": 8, "learning_starts": 40}
    train = {"steps": 300, "evaluate_every": 0, "final_episodes": 0}
    trainer = pearl.compile({"algorithm": small, "train": train})
    trainer.train(out=out)
    return trainer


def sequential(layers: list[int], activation: str) -> nn.Sequential:
    made: list[nn.Module] = []
    for i, o in pairwise(layers):
        made += [nn.Linear(i, o), {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]()]
    return nn.Sequential(*made[:-1])


def acts(about: dict[str, Any], out: torch.Tensor) -> Any:
    rule = about["outputs"]
    if rule["rule"] == "argmax":
        return out[:, -rule["actions"] :].argmax(1).numpy()
    low, high = (torch.tensor(rule[end]) for end in ("low", "high"))
    half = (high - low) / 2
    if rule["rule"] == "clip":
        return (low + half + half * out).clamp(low, high).numpy()
    return (low + half + half * torch.tanh(out[:, : rule["act"]])).numpy()


@pytest.mark.parametrize("name", CASES)
def test_an_equivalent_sequential_loads_it_and_acts_the_same(name: str, tmp_path: Path) -> None:
    trainer = trained(name, **CASES[name])
    trainer.export(tmp_path / "policy.safetensors")
    with safe_open(str(tmp_path / "policy.safetensors"), framework="numpy") as file:
        about = json.loads(file.metadata()["pearl_policy"])
    model = sequential(about["network"]["layers"], about["network"]["activation"])
    model.load_state_dict(load_file(tmp_path / "policy.safetensors"), strict=True)
    obs = np.random.default_rng(0).normal(size=(64, trainer.system.env.obs)).astype(np.float32)
    x = torch.from_numpy(obs)
    if about["normalise"]:
        n = about["normalise"]
        mean, variance = (torch.tensor(n[k], dtype=torch.float64) for k in ("mean", "variance"))
        x = ((x - mean) / (variance + n["epsilon"]).sqrt()).clamp(-n["clip"], n["clip"]).float()
    with torch.no_grad():
        mine = acts(about, model(x))
    np.testing.assert_allclose(mine, trainer.policy.act(obs), atol=1e-6)
    assert bool(about["normalise"]) == (name == "dqn")


def untrained(**algorithm: Any) -> Policy:
    """A policy of zeros and of statistics 0, 1, 2, …."""
    system = pearl.load({"algorithm": {"env": "E-v0", **algorithm}, "platform": "cpu_gpu"})
    kernel = acting_of(build_graph(system))
    states = {
        name: np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        for name, (shape, dtype) in policy_states(system, kernel).items()
    }
    (size,) = (n for name, (n, _) in buffers.specs(kernel).items() if name.startswith("policy."))
    return Policy(system, kernel, np.zeros(size, np.float32), states)


ARGMAX = {"rule": "argmax_each", "choices": [2, 3]}
UNIT = {"activation": "relu", "layers": [4, 8, 4]}


@pytest.mark.parametrize(
    ("algorithm", "network", "outputs", "action"),
    [
        ({"name": "dqn", "spaces": {"obs": 4, "actions": 3, "start": 5}, "duelling": True},
         {**UNIT, "layers": [4, 8, 4]}, {"rule": "argmax", "actions": 3, "start": 5}, 5),
        ({"name": "ppo", "spaces": {"obs": 4, "choices": [2, 3]}},
         {"activation": "tanh", "layers": [4, 8, 5]}, {**ARGMAX, "start": [0, 0]}, [0, 0]),
        ({"name": "a2c", "spaces": {"obs": 4, "choices": [2, 3], "start": -1},
          "activation": "relu"},
         {**UNIT, "layers": [4, 8, 5]}, {**ARGMAX, "start": [-1, -1]}, [-1, -1]),
        ({"name": "ppo", "spaces": {"obs": 4, "act": 2, "low": [-1.0, -0.5]}},
         {"activation": "tanh", "layers": [4, 8, 2]},
         {"rule": "clip", "act": 2, "low": [-1.0, -0.5], "high": [None, None]}, [0, 0]),
        ({"name": "sac", "spaces": {"obs": 4, "act": 1, "low": -2, "high": 3}},
         {**UNIT, "layers": [4, 8, 2]}, {"rule": "tanh", "act": 1, "low": [-2.0], "high": [3.0]},
         [0.5]),
    ],
)  # fmt: skip
def test_a_description_says_what_a_program_needs(algorithm, network, outputs, action):
    policy = untrained(hidden=[8], **algorithm)
    expected = {"schema": 1, "algorithm": algorithm["name"], "env": "E-v0", "network": network,
                "outputs": outputs, "observations": [{"path": [], "shape": [4]}],
                "pixels": [], "normalise": None}  # fmt: skip
    assert description(policy) == expected
    assert policy.act(np.zeros(4)).tolist() == action
    assert policy.act(np.zeros((2, 4))).tolist() == [action, action]
    scaled = untrained(
        hidden=[8], normalise={"observations": True, "clip": 5.0, "epsilon": 0.5}, **algorithm
    )
    statistics = {"mean": [0, 1, 2, 3], "variance": [4, 5, 6, 7], "epsilon": 0.5, "clip": 5.0}
    assert description(scaled) == {**expected, "normalise": statistics}


def test_a_table_takes_states_alone() -> None:
    policy = untrained(name="q_learning", spaces={"states": 6, "actions": 2, "start": 3})
    about = description(policy)
    assert (about["network"], about["outputs"]["start"]) == ({"states": 6}, 3)
    policy.parameters = np.arange(12.0).reshape(6, 2)
    assert policy.act(5).tolist() == 4
    assert policy.act([0, 5]).tolist() == [4, 4]
    for wrong in (-1, 6, [0, 6]):
        with pytest.raises(ValueError, match="its space has 0 … 5"):
            policy.act(wrong)
    with pytest.raises(ValueError, match=r"have shape \(1, 1\); the policy takes \(B,\), numbers"):
        policy.act([[1]])
    table = policy.tensors()
    assert table.keys() == {"0.weight"}
    assert table["0.weight"] is not policy.parameters


def test_a_module_of_the_users_own_loads_it_under_its_own_names() -> None:
    names = {"env": "Catch", "network": "cnn"}
    spec: dict[str, Any] = {key: f"examples.catch_image:{name}" for key, name in names.items()}
    trainer = trained("dqn", **spec)
    model = cnn((1, 16, 16), 3)
    model.load_state_dict(trainer.policy.state_dict(), strict=True)
    pictures = np.random.default_rng(0).integers(0, 256, (32, 256)).astype(np.float32)
    with torch.no_grad():
        mine = model(torch.from_numpy(pictures).view(-1, 1, 16, 16)).argmax(1)
    np.testing.assert_array_equal(mine.numpy(), trainer.policy.act(pictures))


def test_the_command_writes_it_without_torch(tmp_path: Path) -> None:
    trained("dqn", tmp_path / "run", env="CartPole-v1")
    code = (
        "import sys; from pearl.cli import main; sys.argv = ['pearl', 'export', 'run', "
        "'p.safetensors', '--json', 'p.json']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0.weight, 0.bias, 2.weight, 2.bias, 4.weight, 4.bias" in done.stdout
    assert problems(json.loads((tmp_path / "p.json").read_text()), "export") == []
    assert load_file(tmp_path / "p.safetensors")["0.weight"].shape == (16, 4)


@pytest.mark.parametrize("name", ["policy.onnx", "policy.pt", "policy.SAFETENSORS"])
def test_a_name_of_another_format_is_refused_and_nothing_is_written(name, tmp_path):
    policy = trained("ppo", env="CartPole-v1").policy
    with pytest.raises(SpecError, match=r"allowed are \.safetensors or no suffix; nothing was wri"):
        export(policy, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert export(policy, tmp_path / "policy")["algorithm"] == "ppo"
    assert (tmp_path / "policy").is_file()
