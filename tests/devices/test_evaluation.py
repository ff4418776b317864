"""Episodes in lock-step are those that gymnasium plays one after the other."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from pearl_devices import cpu, kernel
from pearl_devices.base import EnvironmentFailed
from pearl_devices.buffers import allocate
from pearl_devices.kernels.evaluation import ROWS, evaluation
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs.episodes import FIRST_STATES
from pearl_devices.primitives.envs.evaluations import episode_seeds

EPISODES = ROWS + 5


def bound(program, variant, args=None, **sizes):
    """An evaluation with a random network, and its arrays."""
    env = NATIVE_ENVS[program]
    name, kind = ("q", "inference.dqn") if env.actions else ("actor", "inference.ppo")
    layers = (env.obs, 16, env.actions or env.act)
    acting = kernel(kind, {name: layers, "tanh": 1}, envs=4, obs=env.obs, act=env.act)
    sizes = {"max_steps": 60, **sizes}
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
        drawn = FIRST_STATES[program](np.random.Generator(np.random.PCG64(seed)))
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
    for seed, found in zip(episode_seeds(3, EPISODES), arrays["evaluation.returns"], strict=True):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over and total < 60:
            obs, reward, stop, late, _ = env.step(int(act(obs[np.newaxis])[0]))
            total, over = total + float(reward), stop or late
        assert total == found


LEFT = {"reset": 0, "step": 0}
"""Calls of a kind until `Failing` fails."""


class Failing(gymnasium.Env):
    """Its episodes take two steps. It fails in a reset or in a second step, counted over all."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def fail(self, where):
        LEFT[where] -= 1
        if LEFT[where] == 0:
            raise ValueError("no  more")
        return np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.fail("reset"), {}

    def step(self, action):
        self.at += 1
        return self.fail("step") if self.at == 2 else np.zeros(4), 1.0, self.at == 2, False, {}


@pytest.mark.parametrize(
    ("where", "at"), [("reset", "episode 3, step 0"), ("step", "episode 3, step 2")]
)
def test_an_environment_that_fails_is_named_with_episode_and_step(where, at):
    acting = kernel("inference.dqn", q=(4, 2), envs=2, obs=4, act=0)
    k = evaluation(acting, "tests.devices.test_evaluation:Failing", {}, 4, max_steps=9)
    call = cpu.bind(k, "gymnasium", allocate([k]))
    LEFT[where] = 3
    with pytest.raises(EnvironmentFailed, match=f"Failing', evaluation {at}: ValueError: no more$"):
        call()
    assert call.since_s is None


@pytest.mark.parametrize("variant", ["native", "gymnasium"])
def test_a_firing_is_an_evaluation_of_the_parameters_as_they_are_when_it_begins(variant):
    call, arrays = bound("CartPole-v1", variant)
    arrays["evaluation.seed"][0] = 3
    first = arrays["policy.q"].copy()
    call()
    returns = arrays["evaluation.returns"].copy()
    arrays["policy.q"][:] = np.random.default_rng(2).normal(0, 0.5, first.size)
    call.begin(3)
    arrays["policy.q"][:] = first  # of no matter once it has begun
    while call.playing:
        call.play(7)
    assert (arrays["evaluation.returns"] != returns).any()
    call()
    assert not call.playing
    np.testing.assert_array_equal(arrays["evaluation.returns"], returns)
