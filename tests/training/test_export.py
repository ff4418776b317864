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
from pearl.errors import SpecError
from pearl.training.policy_export import export
from pearl.training.trainer import Trainer
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


def test_a_table_is_an_embedding() -> None:
    trainer = trained_table()
    model = nn.Embedding(16, 4, dtype=torch.float64)
    held = {name.removeprefix("0."): t for name, t in trainer.policy.state_dict().items()}
    model.load_state_dict(held)
    states = np.arange(16)
    mine = model(torch.from_numpy(states)).argmax(1).numpy()
    np.testing.assert_array_equal(mine, trainer.policy.act(states))


def trained_table() -> Trainer:
    algorithm = {"name": "q_learning", "env": "FrozenLake-v1", "num_envs": 2}
    train = {"steps": 2000, "evaluate_every": 0, "final_episodes": 0}
    trainer = pearl.compile({"algorithm": algorithm, "train": train})
    trainer.train()
    return trainer


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
def test_a_name_of_another_format_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    policy = trained("ppo", env="CartPole-v1").policy
    with pytest.raises(SpecError, match=r"allowed are \.safetensors or no suffix; nothing was wri"):
        export(policy, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert export(policy, tmp_path / "policy")["algorithm"] == "ppo"
    assert (tmp_path / "policy").is_file()
