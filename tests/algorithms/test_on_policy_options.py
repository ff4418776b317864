"""Options of PPO and A2C, and of all learning rates and widths: what they do to a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import pearl
from pearl.algorithms import algorithm
from pearl.spec.user_code import build_graph
from pearl.testing.kernel_buffers import copied, equal
from pearl_devices import Buffers, cpu
from pearl_devices.buffers import allocate, specs
from tests.devices.test_own_network import dense

OWN = "tests.devices.test_own_network:dense"
SMALL: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", "batch_size": 8, "learning_starts": 20},
    "ddpg": {"env": "Pendulum-v1", "batch_size": 8, "learning_starts": 20},
    "td3": {"env": "Pendulum-v1", "batch_size": 8, "learning_starts": 20},
    "sac": {"env": "Pendulum-v1", "batch_size": 8, "learning_starts": 20},
    "ppo": {"env": "CartPole-v1", "num_envs": 4, "rollout_steps": 8, "epochs": 2},
    "a2c": {"env": "CartPole-v1", "num_envs": 4, "rollout_steps": 8},
}


def spec(name: str, steps: int = 64, **algorithm: Any) -> dict[str, Any]:
    return {
        "algorithm": {"name": name, "hidden": [16], **SMALL[name], **algorithm},
        "train": {"steps": steps, "evaluate_every": 0, "final_episodes": 0},
    }


def arrays(system: Any) -> Buffers:
    """Those of a fresh run of a system."""
    found = allocate([task.kernel for task in build_graph(system).tasks])
    algorithm(system.algorithm.name).initialise(found, system, 3)
    return found


def moved(name: str, **options: Any) -> tuple[Buffers, Buffers]:
    """The update of an algorithm run natively and in torch, on the same numbers."""
    system = pearl.load(spec(name, **options))
    update = build_graph(system).task("learn").kernel
    native, random = arrays(system), np.random.default_rng(0)
    for key, array in native.items():
        if key.startswith(("batch.", "rollout.")) and array.dtype == np.float32:
            array[:] = random.normal(size=array.shape)
        if key.endswith("log_prob"):
            array[:] = -0.7
    if name == "a2c":  # whose ratio is 1: as likely as each other, and so drawn
        native["learner.actor"][-34:], native["rollout.log_prob"][:] = 0, -math.log(2)
    other = copied(native)
    for variant, b in (("native", native), ("torch", other)):
        call = cpu.bind(update, variant, {n: b[n] for n in specs(update)})
        for _ in range(1 if name == "a2c" else 3):
            call()
    return native, other


RATES = {"initial": 1e-2, "final": 1e-3, "schedule": "cosine"}


@pytest.mark.parametrize("name", SMALL)
def test_native_and_torch_follow_the_same_schedule_with_widths_of_their_own(name: str) -> None:
    rates = [n for n in ("learning_rate", "actor_learning_rate", "critic_learning_rate")
             if n in algorithm(name).Options.__dataclass_fields__]  # fmt: skip
    options: dict[str, Any] = dict.fromkeys(rates, RATES)
    if name != "dqn":
        options["hidden"] = {"actor": [16], "critic": [24, 8]}
    native, other = moved(name, **options)
    for array in equal(native, other):
        if array.startswith("learner."):
            apart = np.linalg.norm(native[array].astype(float) - other[array])
            assert apart <= 2e-3 * np.linalg.norm(native[array].astype(float)), array
    if name != "dqn":
        assert (
            native["learner.actor"].size
            != native["learner.critic1" if name in ("td3", "sac") else "learner.critic"].size
        )


@pytest.mark.parametrize(
    ("schedule", "done", "share"),
    [("linear", 0, 1.0), ("linear", 30, 0.5), ("cosine", 15, 0.8535534), ("linear", 90, 0.0)],
)
def test_a_schedule_is_that_of_the_whole_run(schedule: str, done: int, share: float) -> None:
    from pearl_devices.primitives.math.nets import rate

    given = {"initial": 1e-2, "final": 1e-3, "schedule": schedule}
    b = arrays(pearl.load(spec("dqn", steps=80, replay_ratio=1, learning_rate=given)))
    assert rate(b["hyper.lr.q"], float(done)) == pytest.approx(1e-3 + 9e-3 * share)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_network_of_ones_own_moves_as_the_same_dense_layers_do(name: str) -> None:
    """Its torch variant beside that of dense layers with the same first values."""
    systems = [pearl.load(spec(name, activation="relu", **own)) for own in ({}, {"network": OWN})]
    found = []
    for system in systems:
        b, random = arrays(system), np.random.default_rng(0)
        for key, array in b.items():
            if key.startswith("rollout.") and array.dtype == np.float32:
                array[:] = random.normal(size=array.shape)
        b["rollout.log_prob"][:], b["rollout.action"][:] = -0.7, 1
        for net, outputs in (("actor", 2), ("critic", 1)):
            torch.manual_seed(outputs)
            made = list(dense((4,), outputs).parameters())
            parts = [p.detach().numpy() for p in made]
            flat = [p.ravel() if system is systems[1] else p.T.ravel() for p in parts]
            for side in ("learner", "policy"):
                b[f"{side}.{net}"][:] = np.concatenate(flat)
        for task in ("advantages", "learn"):
            k = build_graph(system).task(task).kernel
            cpu.bind(k, "torch", b)()
        found.append(b)
    plain, own = found
    for array in ("rollout.advantage", "rollout.returns", "loss.actor", "loss.critic"):
        np.testing.assert_allclose(own[array], plain[array], rtol=1e-4, atol=1e-5)
    for net, (i, o) in (("actor", (4, 2)), ("critic", (4, 1))):
        a, b = plain[f"learner.{net}"], own[f"learner.{net}"]
        np.testing.assert_allclose(b[: 16 * i].reshape(16, i), a[: 16 * i].reshape(i, 16).T,
                                   rtol=1e-3, atol=1e-5)  # fmt: skip
        np.testing.assert_allclose(b[-o:], a[-o:], rtol=1e-3, atol=1e-5)


def test_a_network_of_ones_own_trains_on_stacked_frames_and_a_resumed_run_is_the_same(tmp_path):
    given = {"algorithm": {"name": "ppo", "env": "examples.catch_image:Catch", "network": OWN,
                           "frame_stack": 2, "num_envs": 4, "rollout_steps": 8},
             "train": {"steps": 128, "evaluate_every": 0, "final_episodes": 2}}  # fmt: skip
    system = pearl.load(given)
    assert system.env.shape[0] == 2
    whole = pearl.compile(system, seed=1)
    whole.train()
    trainer = pearl.compile(system, seed=1)
    trainer.train(steps=64, out=tmp_path)
    again = pearl.Trainer.load(tmp_path, trust=True)
    again.train(out=tmp_path, resume=True, steps=128)
    assert np.array_equal(again.policy.parameters, whole.policy.parameters)
