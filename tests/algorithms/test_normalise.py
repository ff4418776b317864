"""Running normalisation: gymnasium's wrappers are the reference; statistics belong to the run."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers.utils import RunningMeanStd

import pearl
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import cpu, kernel
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs import normalise
from tests.examples import SMALL_DQN
from tests.lanes import cut

BOTH = {"normalise_obs": 1, "normalise_reward": 1}


def env_step(program: str, envs: int, **more: int) -> Any:
    sizes = NATIVE_ENVS[program]
    return kernel("env_step", more, program=program, envs=envs, obs=sizes.obs, act=sizes.act)


@pytest.mark.parametrize("program", ["CartPole-v1", "Pendulum-v1"])
def test_one_environment_is_normalised_as_by_gymnasiums_wrappers(program: str) -> None:
    """Both see the same episodes; the wrapped environment is reset where ours restarts itself."""
    k = env_step(program, 1, **BOTH)
    buffers, random = fill_arrays([k]), np.random.default_rng(0)
    normalise.initialise(buffers, clip=0.0, epsilon=1e-8, discount=0.99)
    call = cpu.bind(k, "gymnasium", buffers)
    inner = gymnasium.make(program)
    wrapped = NormalizeReward(NormalizeObservation(inner), gamma=0.99)
    from pearl_devices.primitives.envs.gym_make import draw_seeds

    buffers["rng.env_step"][1] = 0
    obs, _ = wrapped.reset(seed=draw_seeds(buffers, 1)[0])
    ends = 0
    for _ in range(1500):
        np.testing.assert_allclose(buffers["env.obs"][0], obs, rtol=1e-4, atol=1e-5)
        if program == "CartPole-v1":
            buffers["act.action"][0] = random.integers(2)
            action: Any = int(buffers["act.action"][0])
        else:
            buffers["act.action"][0] = random.uniform(-2, 2)
            action = buffers["act.action"][0].copy()
        call()
        obs, reward, terminated, truncated, _ = wrapped.step(action)
        np.testing.assert_allclose(buffers["step.next_obs"][0], obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(buffers["step.reward"][0], float(reward), rtol=1e-5)
        if terminated or truncated:
            ends += 1
            obs, _ = wrapped.reset()
    assert ends >= 5


@pytest.mark.parametrize("variant", ["native", "gymnasium"])
def test_a_batch_joins_the_statistics_as_one(variant: str) -> None:
    """Against gymnasium's RunningMeanStd, fed with the raw observations of an equal run."""
    plain, scaled = env_step("CartPole-v1", 3), env_step("CartPole-v1", 3, **BOTH)
    raw, mine, random = fill_arrays([plain]), fill_arrays([scaled]), np.random.default_rng(0)
    normalise.initialise(mine, clip=2.0, epsilon=1e-8, discount=0.9)
    step, call = cpu.bind(plain, variant, raw), cpu.bind(scaled, variant, mine)
    statistics: Any = RunningMeanStd
    seen, returned = statistics(shape=(4,)), statistics()
    seen.update(raw["env.obs"].astype(np.float64))
    total = np.zeros(3)
    for _ in range(300):
        raw["act.action"][:] = random.integers(0, 2, 3)
        mine["act.action"][:] = raw["act.action"]
        step()
        call()
        seen.update(raw["step.next_obs"].astype(np.float64))
        expected = (raw["step.next_obs"] - seen.mean) / np.sqrt(seen.var + 1e-8)
        np.testing.assert_allclose(
            mine["step.next_obs"], expected.clip(-2, 2), rtol=1e-4, atol=1e-5
        )
        total = total * 0.9 * (1 - raw["step.terminated"]) + raw["step.reward"]
        returned.update(total)
        expected = raw["step.reward"] / np.sqrt(returned.var + 1e-8)
        np.testing.assert_allclose(mine["step.reward"], expected.clip(-2, 2), rtol=1e-5)
        ended = (raw["step.terminated"] | raw["step.truncated"]).astype(bool)
        if ended.any():
            seen.update(raw["env.obs"][ended].astype(np.float64))
            expected = (raw["env.obs"][ended] - seen.mean) / np.sqrt(seen.var + 1e-8)
            np.testing.assert_allclose(
                mine["env.obs"][ended], expected.clip(-2, 2), rtol=1e-4, atol=1e-5
            )
        np.testing.assert_array_equal(mine["env.obs"][~ended], mine["step.next_obs"][~ended])
    np.testing.assert_allclose(mine["normalise.obs"], [seen.mean, seen.var], rtol=1e-9)
    assert np.abs(mine["step.next_obs"]).max() <= 2.0
    np.testing.assert_array_equal(mine["episode.returns"], raw["episode.returns"])


SMALL: dict[str, Any] = {
    "algorithm": {**SMALL_DQN, "normalise": {"observations": True, "rewards": True}},
    "train": {"steps": 800, "evaluate_every": 200, "evaluate_episodes": 1, "checkpoint_every": 400},
}


def test_a_resumed_run_equals_one_that_was_never_cut_and_evaluation_changes_nothing(tmp_path):
    whole, half, resumed = (pearl.compile(SMALL) for _ in range(3))
    whole.train(out=tmp_path / "whole")
    cut(half, 400, out=tmp_path / "half")
    resumed.train(out=tmp_path / "half", resume=True)
    assert whole.session.arrays["normalise.obs.count"][0] > 800
    for name, array in whole.session.arrays.items():
        if not name.startswith(("batch.", "step.")):
            np.testing.assert_array_equal(array, resumed.session.arrays[name], err_msg=name)
    before = whole.session.arrays["normalise.obs"].copy()
    whole.evaluate(3)
    np.testing.assert_array_equal(whole.session.arrays["normalise.obs"], before)
    loaded = pearl.Trainer.load(tmp_path / "whole")
    assert loaded.evaluate(2, seed=1) == whole.evaluate(2, seed=1)


def test_the_policy_scales_observations_as_training_did() -> None:
    trainer = pearl.compile(SMALL, set={"train.evaluate_every": 0})
    trainer.train()
    arrays, policy = trainer.session.arrays, trainer.policy
    mean, variance = arrays["normalise.obs"]
    raw = np.random.default_rng(0).normal(mean, np.sqrt(variance), (50, 4)).astype(np.float32)
    scaled = ((raw - mean) / np.sqrt(variance + 1e-8)).clip(-10, 10).astype(np.float32)
    inference = trainer.graph.task("act").kernel
    expected = cpu.act(inference, arrays["policy.q"], scaled)
    np.testing.assert_array_equal(policy.act(raw), expected)
    assert not np.array_equal(cpu.act(inference, arrays["policy.q"], raw), expected)


ACTORS = {"ddpg": (3, 8, 2), "sac": (3, 8, 4)}


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("name", ACTORS)
def test_actions_fill_asymmetric_bounds_and_stay_inside(name: str, variant: str) -> None:
    k = kernel(f"inference.{name}", envs=512, obs=3, act=2, actor=ACTORS[name])
    buffers = fill_arrays([k])
    low, high = np.array([-1.0, 3.0], np.float32), np.array([0.5, 11.0], np.float32)
    buffers["act.low"][:], buffers["act.high"][:] = low, high
    buffers["env.obs"][:] = np.random.default_rng(0).normal(0, 4, (512, 3))
    buffers["policy.actor"][:] *= 4
    for explore in ((2.0, 0, 0, 0), (2.0, 0, 0, 1e9)):  # the policy with noise; random actions
        buffers["explore"][:] = explore
        cpu.bind(k, variant, buffers)()
        action = buffers["act.action"]
        assert (action >= low).all()
        assert (action <= high).all()
        assert (action.min(0) <= low + 0.1 * (high - low)).all()
        assert (action.max(0) >= high - 0.1 * (high - low)).all()
    greedy = cpu.act(k, buffers["policy.actor"], buffers["env.obs"], low, high)
    middle = cpu.act(k, 0 * buffers["policy.actor"], buffers["env.obs"], low, high)
    assert ((greedy >= low) & (greedy <= high)).all()
    np.testing.assert_allclose(middle, np.broadcast_to((low + high) / 2, (512, 2)), rtol=1e-6)
