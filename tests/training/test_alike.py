"""One observation, wherever it goes: to the network in training, in an evaluation, in `Policy.act`,
and in another program that has the exported file alone. All choose the same action."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S
from safetensors import safe_open

import pearl
from pearl.algorithms.evaluation import acting_of
from pearl.algorithms.interface import policy_states
from pearl.spec.user_code import build_graph
from pearl.testing.kernel_buffers import fill_arrays
from pearl.training.evaluations.evaluation import evaluate
from pearl.training.policy import Policy
from pearl.training.policy_export import export
from pearl_devices import buffers, cpu
from tests.needs import needs_torch
from tests.training import bordering

HERE = "tests.training.test_alike"
SEEN: list[Any] = []
"""Observations that environments gave, in order."""
TAKEN: list[Any] = []
"""Actions that they got."""

PICTURE = S.Box(0, 255, (3, 4, 2), np.uint8)
SPACES = bordering.SPACES | {
    "bytes": S.Box(0, 255, (5,), np.uint8),
    "short": S.Box(-9, 9, (2, 1, 2), np.int16),
    "half": S.Box(-1, 1, (3,), np.float16),
    "squares": S.MultiBinary([2, 2]),
    "picture": PICTURE,
    "pictures": S.Dict({"eye": PICTURE, "bytes": S.Box(0, 255, (3,), np.uint8),
                        "speed": S.Box(-5, 5, (2,), np.float64), "gear": S.Discrete(3, start=-1)}),
    "deep": S.Tuple([S.Dict({"eyes": S.Tuple([PICTURE, PICTURE])}), S.MultiDiscrete([3, 2])]),
}  # fmt: skip

ACTIONS: dict[str, Any] = {
    "two": S.Discrete(2),
    "started": S.Discrete(3, start=-1),
    "bounded": S.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
    "free": S.Box(-np.inf, np.inf, (2,), np.float32),
    "several": S.MultiDiscrete([2, 3], start=[0, 4]),
    "bits": S.MultiBinary(3),
}


class Telling(gymnasium.Env[Any, Any]):
    """Writes down what it gives and gets."""

    def __init__(self, space: str, actions: str) -> None:
        self.observation_space, self.action_space = SPACES[space], ACTIONS[actions]
        self.t = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self._give(), {}

    def step(self, action: Any) -> Any:
        TAKEN.append(action)
        self.t += 1
        return self._give(), 1.0, False, self.t == 3, {}

    def _give(self) -> Any:
        SEEN.append(self.observation_space.sample())
        return SEEN[-1]


def policy_of(name: str, space: str, actions: str, *, normalised: bool = False) -> Policy:
    """A policy of random parameters, and of random statistics if observations are normalised."""
    algorithm = {"name": name, "env": f"{HERE}:Telling", "hidden": [8], "num_envs": 1,
                 "env_args": {"space": space, "actions": actions},
                 "normalise": {"observations": normalised}}  # fmt: skip
    system = pearl.load({"algorithm": algorithm, "platform": "cpu_gpu"})
    kernel = acting_of(build_graph(system))
    draw = np.random.default_rng(5)
    states = {
        key: draw.uniform(1, 3, shape).astype(dtype)
        for key, (shape, dtype) in policy_states(system, kernel).items()
    }
    (size,) = (n for key, (n, _) in buffers.specs(kernel).items() if key.startswith("policy."))
    return Policy(system, kernel, draw.normal(size=size).astype(np.float32) / 4, states)


def flat(about: dict[str, Any], seen: Any) -> np.ndarray:
    """An observation as a program flattens it that knows the exported description alone."""
    row: list[float] = []
    for part in about["observations"]:
        value = seen
        for key in part["path"]:
            value = value[key]
        value = np.asarray(value).reshape(-1)
        if "choices" in part:
            for n, count, start in zip(value, part["choices"], part["starts"], strict=True):
                row += np.eye(count)[n - start].tolist()
        else:
            row += value.tolist()
    found = np.array(row, np.float64)
    for first, end in about["pixels"]:
        found[first:end] /= 255
    if scale := about["normalise"]:
        found = (found - scale["mean"]) / np.sqrt(np.add(scale["variance"], scale["epsilon"]))
        found = found.clip(-scale["clip"], scale["clip"]) if scale["clip"] else found
    return found.astype(np.float32)


def actions_of(about: dict[str, Any], out: Any) -> Any:
    """The actions that the exported description makes of a network's outputs."""
    import torch

    rule = about["outputs"]
    if rule["rule"] == "argmax":
        return out[:, -rule["actions"] :].argmax(1).numpy() + rule["start"]
    if rule["rule"] == "argmax_each":
        parts = out.split(rule["choices"], dim=1)
        return np.stack([p.argmax(1).numpy() for p in parts], axis=1) + rule["start"]
    if None in rule["low"]:
        return out.numpy()
    low, high = (torch.tensor(rule[end]) for end in ("low", "high"))
    half = (high - low) / 2
    if rule["rule"] == "clip":
        return (low + half + half * out).clamp(low, high).numpy()
    return (low + half + half * torch.tanh(out[:, : rule["act"]])).numpy()


def exported(policy: Policy, path: Path, seen: list[Any]) -> Any:
    """The actions of a torch module that has the exported file alone."""
    import torch
    from safetensors.torch import load_file
    from torch import nn

    export(policy, path)
    with safe_open(str(path), framework="numpy") as file:
        about = json.loads(file.metadata()["pearl_policy"])
    made: list[nn.Module] = []
    for i, o in pairwise(about["network"]["layers"]):
        kind = {"relu": nn.ReLU, "tanh": nn.Tanh}[about["network"]["activation"]]
        made += [nn.Linear(i, o), kind()]
    model = nn.Sequential(*made[:-1])
    model.load_state_dict(load_file(path), strict=True)
    rows = torch.from_numpy(np.array([flat(about, each) for each in seen]))
    with torch.no_grad():
        return actions_of(about, model(rows))


def played(policy: Policy) -> tuple[list[Any], np.ndarray]:
    """Observations of an evaluation, and the actions that it took after them."""
    SEEN.clear()
    TAKEN.clear()
    evaluate(policy, 2, seed=3)
    # Two environments in lock-step: two first observations, and one after each step of each.
    assert (len(SEEN), len(TAKEN)) == (8, 6)
    return SEEN[:6], np.array(TAKEN).reshape(6, -1)


PAIRS = [*((name, space, actions) for space in sorted(SPACES)
           for name, actions in (("dqn", "two"), ("ppo", "bounded"))),
         *(("sac", space, "bounded") for space in ("pictures", "deep")),
         *(("ppo", "pictures", actions) for actions in sorted(ACTIONS) if actions != "bounded"),
         ("dqn", "nested", "started")]  # fmt: skip


@pytest.mark.sweep(3)
@needs_torch
@pytest.mark.parametrize(("name", "space", "actions"), PAIRS)
def test_evaluation_policy_and_exported_file_act_alike(name, space, actions, tmp_path) -> None:
    policy = policy_of(name, space, actions)
    seen, taken = played(policy)
    one_by_one = np.array([policy.act(each) for each in seen]).reshape(6, -1)
    np.testing.assert_allclose(one_by_one, taken, rtol=1e-6, atol=1e-6)
    loaded = exported(policy, tmp_path / "p.safetensors", seen).reshape(6, -1)
    np.testing.assert_allclose(loaded, taken, rtol=1e-6, atol=2e-6)


@needs_torch
@pytest.mark.parametrize("space", ["double", "choices_started", "camera", "pictures", "deep"])
def test_normalised_observations_act_alike(space: str, tmp_path: Path) -> None:
    policy = policy_of("ppo", space, "bounded", normalised=True)
    seen, taken = played(policy)
    one_by_one = np.array([policy.act(each) for each in seen])
    np.testing.assert_allclose(one_by_one, taken, rtol=1e-6, atol=1e-6)
    loaded = exported(policy, tmp_path / "p.safetensors", seen)
    np.testing.assert_allclose(loaded, taken, rtol=1e-6, atol=2e-6)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("hosting", ["gymnasium", "processes"])
@pytest.mark.parametrize("space", sorted(SPACES))
def test_training_gives_the_network_what_the_policy_gives_it(space: str, hosting: str) -> None:
    if hosting == "processes" and space not in ("pictures", "nested", "started"):
        return
    policy = policy_of("ppo", space, "bounded")
    graph = build_graph(policy.system)
    (step,) = (t.kernel for t in graph.tasks if t.kernel.kind == "env_step")
    arrays = fill_arrays([step])
    SEEN.clear()
    call = cpu.bind(step, hosting, arrays)
    rows = [arrays["env.obs"][0].copy()]
    arrays["act.action"][:] = 0.5
    for _ in range(2):
        call()
        rows.append(arrays["env.obs"][0].copy())
    seen = SEEN[-3:]
    if hosting == "processes":  # its list is in the other process
        twin = Telling(space, "bounded")
        from pearl_devices.primitives.envs.gym_make import draw_seeds

        fresh = fill_arrays([step])
        seen = [twin.reset(seed=draw_seeds(fresh, 1)[0])[0], *(twin.step(0)[0] for _ in range(2))]
    for row, each in zip(rows, seen, strict=True):
        shown = policy.interface.observe(policy._reader.read_given(each, np.float32)[0])[0]
        np.testing.assert_allclose(row, shown, rtol=1e-6, atol=1e-6)


def test_a_gpu_that_cannot_store_uint8_says_so() -> None:
    algorithm = {"name": "dqn", "env": f"{HERE}:Telling", "hidden": [8], "num_envs": 1,
                 "env_args": {"space": "bytes", "actions": "two"}}  # fmt: skip
    limits = {"pin": {"store": "gpu"}}
    system = pearl.load({"algorithm": algorithm, "platform": "cpu_gpu", "limits": limits})
    with pytest.raises(pearl.InfeasibleError, match="observations that are stored as uint8"):
        pearl.plan(system)
