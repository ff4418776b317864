"""Episodes in lock-step are those that gymnasium plays one after the other."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from pearl_devices import cpu, kernel
from pearl_devices.buffers import allocate
from pearl_devices.kernels.evaluation import ROWS, evaluation
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs.episodes import MOVES
from pearl_devices.primitives.envs.evaluations import seeds

EPISODES = ROWS + 5


def bound(program, variant, args=None, **sizes):
    """An evaluation with a random network, and its arrays."""
    env = NATIVE_ENVS[program]
    name, kind = ("q", "inference.dqn") if env.actions else ("actor", "inference.ppo")
    layers = (env.obs, 16, env.actions or env.act)
    acting = kernel(kind, {name: layers, "tanh": 1}, envs=4, obs=env.obs, act=env.act)
    sizes = {"max_steps": 60, "stride": 7, "every": 0, **sizes}
    k = evaluation(acting, program, args or {}, EPISODES, **sizes)
    arrays = allocate([k])
    arrays[f"policy.{name}"][:] = np.random.default_rng(1).normal(
        0, 0.5, len(arrays[f"policy.{name}"])
    )
    if env.act:
        arrays["act.low"][:], arrays["act.high"][:] = -2.0, 2.0
    return cpu.bind(k, variant, arrays), arrays


@pytest.mark.parametrize("program", NATIVE_ENVS)
def test_first_states_are_gymnasiums(program):
    env = gymnasium.make(program)
    for seed in (0, 7, 2**31 - 1):
        env.reset(seed=seed)
        drawn = MOVES[program][2](np.random.Generator(np.random.PCG64(seed)))
        np.testing.assert_array_equal(np.asarray(env.unwrapped.state), drawn)


@pytest.mark.parametrize("program", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("most", [60, 2000])
def test_native_episodes_are_those_of_gymnasium(program, most):
    found = []
    for variant in ("native", "gymnasium"):
        call, arrays = bound(program, variant, max_steps=most)
        call.begin(3)
        while call.playing:
            call.play(50)
        found.append(arrays)
    native, gym = found
    np.testing.assert_allclose(native["evaluation.returns"], gym["evaluation.returns"], rtol=1e-3)
    np.testing.assert_array_equal(native["evaluation.cut"], gym["evaluation.cut"])
    assert native["evaluation.cut"].all() == (most == 60 and program == "Pendulum-v1")
    assert len({*native["evaluation.returns"]}) > 2


def test_lock_step_plays_the_episodes_one_after_the_other():
    call, arrays = bound("CartPole-v1", "gymnasium")
    call.begin(3)
    while call.playing:
        call.play(1)
    act = cpu.greedy(
        kernel("inference.dqn", envs=1, obs=4, act=0, q=(4, 16, 2), tanh=1), arrays["policy.q"]
    )
    env = gymnasium.make("CartPole-v1")
    for seed, found in zip(seeds(3, EPISODES), arrays["evaluation.returns"], strict=True):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over and total < 60:
            obs, reward, stop, late, _ = env.step(int(act(obs[np.newaxis])[0]))
            total, over = total + float(reward), stop or late
        assert total == found


@pytest.mark.parametrize("variant", ["native", "gymnasium"])
def test_an_evaluation_begins_by_itself_of_the_parameters_as_they_are_then(variant):
    call, arrays = bound("CartPole-v1", variant, stride=25, every=4)
    arrays["evaluation.firings"][1] = 4
    for _ in range(4):
        call()
    assert not call.playing
    first = arrays["policy.q"].copy()
    call()
    arrays["policy.q"][:] += 1.0
    np.testing.assert_array_equal(arrays["evaluation.policy"], first)
    arrays["evaluation.more"][0] = 2
    call()
    assert not call.playing
    assert arrays["evaluation.firings"].tolist() == [8, 4, 4]
    once, other = bound("CartPole-v1", variant, stride=25, every=4)
    other["evaluation.firings"][:2] = 4
    other["evaluation.more"][0] = 3
    once()
    np.testing.assert_array_equal(arrays["evaluation.returns"], other["evaluation.returns"])
    once()  # firings 8 to 11, and no further evaluation amid them
    assert other["evaluation.firings"].tolist() == [12, 4, 8]
    other["evaluation.more"][0] = 5
    once()  # 12 to 17: one begins with 12 and one with 16
    assert other["evaluation.firings"].tolist() == [18, 4, 16]
