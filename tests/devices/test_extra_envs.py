"""Environments of the extras: envpool's as a variant of step, MuJoCo's through gymnasium."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from pearl_devices import Buffers, UnsupportedError, cpu, kernel
from pearl_devices.buffers import allocate
from pearl_devices.kernels import environments
from pearl_devices.kernels.arrays import EPISODES


def spec(env: str, algorithm: str, **more: Any) -> dict[str, Any]:
    options = {"name": algorithm, "env": env, "hidden": [8], "batch_size": 8, "num_envs": 3}
    options |= {"learning_starts": 30, "replay": {"kind": "uniform", "capacity": 300}}
    train = {"steps": 90, "evaluate_every": 0, "final_episodes": 0, "checkpoint_every": 0}
    return {"algorithm": options, "limits": {"max_lanes": 1, **more}, "train": train}


def stepping(program: str, envs: int, obs: int, act: int, seed: int = 3) -> tuple[Any, Buffers]:
    pytest.importorskip("envpool")
    step = kernel("env_step", program=program, envs=envs, obs=obs, act=act)
    buffers = allocate([step])
    buffers["rng.env_step"][0] = seed
    return cpu.bind(step, "envpool", buffers), buffers


def test_envpool_gives_one_true_transition_a_step_and_resets_in_the_step_of_the_end() -> None:
    step, b = stepping("CartPole-v1", envs=3, obs=4, act=0)
    random, ends, running = np.random.default_rng(0), 0, np.zeros(3, int)
    for _ in range(300):
        before = b["env.obs"].copy()
        b["act.action"][:] = random.integers(0, 2, 3)
        step()
        running += 1
        np.testing.assert_array_equal(b["step.obs"], before)
        assert (b["step.reward"] == 1).all()  # the step that envpool spends on a reset has 0
        over = b["step.terminated"] == 1
        position, angle = b["step.next_obs"][:, 0], b["step.next_obs"][:, 2]
        fallen = (abs(position) > 2.4) | (abs(angle) > 0.2095)
        np.testing.assert_array_equal(fallen, over)
        np.testing.assert_array_equal(b["env.obs"][~over], b["step.next_obs"][~over])
        assert (abs(b["env.obs"][over]) <= 0.05).all()
        for n in np.flatnonzero(over):
            ends += 1
            assert running[n] in b["episode.lengths"][:ends]
            running[n] = 0
    assert ends > 20
    assert b["episode.count"][0] == ends < EPISODES
    assert b["episode.returns"][:ends].sum() + running.sum() == 3 * 300


def test_an_episode_that_envpool_cuts_is_truncated_and_not_terminated() -> None:
    step, b = stepping("Pendulum-v1", envs=2, obs=3, act=1)
    for n in range(200):
        assert not b["step.truncated"].any(), n
        step()
    assert b["step.truncated"].all()
    assert not b["step.terminated"].any()
    assert (abs(b["step.next_obs"] - b["env.obs"]) > 1e-3).any(axis=1).all()


def test_envpool_starts_alike_from_equal_keys_and_otherwise_not() -> None:
    first, again, other = (
        stepping("CartPole-v1", 3, 4, 0, seed=seed)[1]["env.obs"] for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[0] != first[1]).any()


def test_an_environment_that_envpool_does_not_know_is_an_error_naming_it() -> None:
    with pytest.raises(UnsupportedError, match="has no environment 'CartPool-v1'"):
        stepping("CartPool-v1", 1, 4, 0)


def test_training_uses_envpool_only_where_the_limits_name_it() -> None:
    pytest.importorskip("envpool")
    assert pearl.compile(spec("CartPole-v1", "dqn")).plan.task("step").variant != "envpool"
    named = spec("CartPole-v1", "dqn", variants={"step": ["envpool"]})
    trainer = pearl.compile(named)
    assert trainer.plan.task("step").variant == "envpool"
    assert trainer.train().status == "done"


def test_without_the_package_a_spec_that_names_envpool_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environments, "find_spec", lambda name: None)
    named = spec("CartPole-v1", "dqn", variants={"step": ["envpool"]})
    with pytest.raises(pearl.InfeasibleError, match=r"needs the package envpool"):
        pearl.plan(pearl.load(named))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "envpool", None)
    from pearl_devices.primitives.envs.envpool_envs import Pool

    with pytest.raises(UnsupportedError, match=r"install 'pearl-toolkit\[envpool\]'"):
        Pool("CartPole-v1", {}, 1)


@pytest.mark.parametrize(("env", "obs", "act"), [("HalfCheetah-v5", 17, 6), ("Hopper-v5", 11, 3)])
@pytest.mark.filterwarnings("ignore")
def test_mujoco_environments_train_through_gymnasium(
    env: str, obs: int, act: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where it writes its log
    trainer = pearl.compile(spec(env, "td3"))
    assert (trainer.system.env.obs, trainer.system.env.act) == (obs, act)
    assert trainer.plan.task("step").variant == "gymnasium"
    run = trainer.train()
    assert run.status == "done"
    assert run.updates == 60
