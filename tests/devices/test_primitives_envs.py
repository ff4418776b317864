"""Environments: the native ones against gymnasium's own, and the gymnasium variant."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl_devices import Buffers, Kernel, UnsupportedError, cpu, kernel
from pearl_devices.kernels.arrays import EPISODES
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs import gym_make
from pearl_devices.primitives.envs.gym_resume import replay_actions
from pearl_devices.primitives.math.rng import stream_base, uniform


def env_kernel(program: str, envs: int, obs: int, act: int, **args: Any) -> Kernel:
    return kernel("env_step", program=program, args=args, envs=envs, obs=obs, act=act)


def native_kernel(program: str, envs: int) -> Kernel:
    sizes = NATIVE_ENVS[program]
    return env_kernel(program, envs, sizes.obs, sizes.act)


def random_actions(buffers: Buffers, random: np.random.Generator, actions: int = 2) -> None:
    action = buffers["act.action"]
    if action.dtype == np.int64:
        action[:] = random.integers(0, actions, action.shape)
    else:
        action[:] = random.uniform(-3.0, 3.0, action.shape)


STATE = {"CartPole-v1": 4, "Acrobot-v1": 4}
"""State variables of an environment; two for the others."""


@pytest.mark.parametrize("program", sorted(NATIVE_ENVS))
def test_the_native_table_says_what_gymnasium_registers(program: str) -> None:
    env, sizes = gymnasium.make(program), NATIVE_ENVS[program]
    assert env.observation_space.shape == (sizes.obs,)
    assert env.spec is not None
    assert env.spec.max_episode_steps == sizes.step_limit
    if isinstance(env.action_space, Discrete):
        assert (sizes.act, sizes.actions) == (0, env.action_space.n)
    else:
        assert (env.action_space.shape, sizes.actions) == ((sizes.act,), 0)


EDGES: dict[str, list[tuple[float, ...]]] = {
    "CartPole-v1": [
        *[(x, v, 0.01, 0.0) for x in (2.39, -2.39) for v in (0.4, 0.6, -0.6)],
        *[(0.1, 0.0, a, w) for a in (0.209, -0.209) for w in (0.01, 0.1, -0.1)],
    ],
    "Pendulum-v1": [(a, w) for a in (3.2, -3.2, 0.5) for w in (8.0, -8.0)],
    "MountainCar-v0": [
        *[(-1.2, -0.01), (-1.19, -0.069), (0.49, 0.02), (0.49, 0.069), (0.6, -0.05)],
        *[(0.5, 0.0), (0.4, 0.07)],
    ],
    "MountainCarContinuous-v0": [
        *[(-1.2, -0.01), (-1.19, -0.069), (0.44, 0.02), (0.44, 0.069), (0.6, -0.05)],
        *[(0.45, 0.0), (0.4, 0.07)],
    ],
    "Acrobot-v1": [
        *[(3.1, 3.1, 3.0, 8.0), (-3.1, -3.1, -3.0, -8.0), (0.0, 0.0, 13.0, 29.0)],
        *[(0.0, 0.0, -13.0, -29.0), (3.0, 0.1, 0.0, 0.0), (1.7, 0.3, 0.0, 0.0)],
    ],
}
"""States from which a step ends the episode, or meets a bound, or just does not."""


@pytest.mark.parametrize("program", sorted(NATIVE_ENVS))
def test_a_vector_step_is_gymnasiums_from_every_kind_of_state(program: str) -> None:
    """Rows are states at the edges and random ones, with every action; episodes of every age."""
    random, size, sizes = np.random.default_rng(2), STATE.get(program, 2), NATIVE_ENVS[program]
    spread = {"CartPole-v1": (1.5, 1, 0.15, 1), "Pendulum-v1": (4, 5), "Acrobot-v1": (3, 3, 5, 9)}
    wide = np.array(spread.get(program, (0.4, 0.05)))
    centre = -0.4 if program.startswith("Mountain") else 0.0
    states = [*EDGES[program], *(centre + wide * random.uniform(-1, 1, (6, size)))]
    actions = range(sizes.actions) if sizes.actions else (-2.5, -1.0, -0.3, 0.7, 1.0, 1.4, 2.5)
    ages = (0, 1) if program in FLAT else (0,)
    cases = [(state, action, old) for state in states for action in actions for old in ages]
    k = native_kernel(program, envs=len(cases))
    buffers = fill_arrays([k])
    call = cpu.bind(k, "native", buffers)
    raw: Any = gymnasium.make(program, disable_env_checker=True).unwrapped
    raw.reset(seed=0)
    age = random.integers(1, sizes.step_limit, len(cases))
    age[::5] = sizes.step_limit - random.integers(1, 3, age[::5].size)
    buffers["env.elapsed"][:], buffers["env.return"][:] = age, random.normal(size=age.size)
    buffers["rng.env_step"][1], buffers["episode.count"][0] = 7, EPISODES - 2
    for row, (state, action, old) in enumerate(cases):
        state = np.array(state, np.float32).astype(float) if old else np.array(state)
        buffers["env.state"][row] = 0
        buffers["env.state"][row, :3] = 0, 0, old
        buffers["env.state"][row, :size] = state
        buffers["act.action"][row] = action
    buffers["env.obs"][:] = random.normal(size=buffers["env.obs"].shape)
    before = copied(buffers)
    call()
    assert np.array_equal(buffers["step.obs"], before["env.obs"])
    assert np.array_equal(buffers["step.action"], before["act.action"])
    assert buffers["rng.env_step"][1] == 8
    base, ended = np.uint64(stream_base(before["rng.env_step"][0], np.uint64(8))), []
    for row, (_, action, old) in enumerate(cases):
        state = before["env.state"][row, :size]
        continuous = program == "MountainCarContinuous-v0"
        raw.state = state.astype(np.float32) if old and continuous else state.copy()
        raw.steps_beyond_terminated = None
        given = action if sizes.actions else before["act.action"][row]
        obs, reward, terminated, _, _ = raw.step(given)
        assert buffers["step.terminated"][row] == terminated, cases[row]
        assert buffers["step.truncated"][row] == (age[row] + 1 >= sizes.step_limit)
        assert buffers["step.reward"][row] == np.float32(reward)
        np.testing.assert_allclose(buffers["step.next_obs"][row], obs, atol=1e-6)
        total = before["env.return"][row] + float(reward)
        if terminated or buffers["step.truncated"][row]:
            ended.append((total, age[row] + 1))
            assert (buffers["env.elapsed"][row], buffers["env.return"][row]) == (0, 0)
            first = buffers["env.state"][row, :size]
            np.testing.assert_allclose(first, first_state(program, base, row), atol=1e-7)
            assert program not in FLAT or not buffers["env.state"][row, 2]
            raw.state = first.copy()
            see = getattr(raw, "_get_obs", getattr(raw, "_get_ob", lambda: raw.state))
            np.testing.assert_allclose(buffers["env.obs"][row], see(), atol=1e-6)
            continue
        if program in FLAT:  # elsewhere sine and cosine may differ in the last bit
            assert np.array_equal(buffers["env.state"][row, :size], raw.state), cases[row]
        np.testing.assert_allclose(
            buffers["env.state"][row, :size], raw.state, rtol=1e-12, atol=1e-14
        )
        assert program not in FLAT or buffers["env.state"][row, 2] == 1
        assert buffers["env.elapsed"][row] == age[row] + 1
        assert buffers["env.return"][row] == pytest.approx(total, rel=1e-6)
        assert np.array_equal(buffers["env.obs"][row], buffers["step.next_obs"][row])
    assert buffers["episode.count"][0] == EPISODES - 2 + len(ended)
    slots = np.arange(-2, len(ended) - 2) % EPISODES
    assert len(ended) > 3
    np.testing.assert_allclose(buffers["episode.returns"][slots], [r for r, _ in ended], rtol=1e-5)
    assert buffers["episode.lengths"][slots].tolist() == [length for _, length in ended]


FLAT = ("MountainCar-v0", "MountainCarContinuous-v0")


def first_state(program: str, base: Any, row: int) -> list[float]:
    """The first state of environment `row`: gymnasium's bounds, and the numbers of the stream."""
    bounds = FIRST[program]
    wide = [i for i, (low, high) in enumerate(bounds) if low < high]
    shares = [uniform(base, len(wide) * row + i) for i in range(len(wide))]
    return [
        low + (high - low) * (shares[i] if i in wide else 0) for i, (low, high) in enumerate(bounds)
    ]


FIRST: dict[str, list[tuple[float, float]]] = {
    "CartPole-v1": [(-0.05, 0.05)] * 4,
    "Pendulum-v1": [(-np.pi, np.pi), (-1.0, 1.0)],
    "Acrobot-v1": [(-0.1, 0.1)] * 4,
    "MountainCar-v0": [(-0.6, -0.4), (0.0, 0.0)],
    "MountainCarContinuous-v0": [(-0.6, -0.4), (0.0, 0.0)],
}
"""gymnasium's bounds of first states."""


@pytest.mark.parametrize("program", sorted(NATIVE_ENVS))
def test_native_runs_resume_bit_for_bit_from_their_arrays(program: str) -> None:
    k, random = native_kernel(program, envs=2), np.random.default_rng(0)
    whole = fill_arrays([k])
    call = cpu.bind(k, "native", whole)
    for _ in range(130):
        random_actions(whole, random)
        call()
    resumed = copied(whole)
    again = cpu.bind(k, "native", resumed)
    for _ in range(130):
        random_actions(whole, random)
        resumed["act.action"][:] = whole["act.action"]
        call()
        again()
    assert equal(whole, resumed) == []


# The gymnasium variant


class Counter(gymnasium.Env[Any, Any]):
    """Observes (number of the episode, step); terminates after `length` steps, or is truncated."""

    def __init__(self, length: int = 3, truncate: bool = False, fault: str = "") -> None:
        self.observation_space = Box(-np.inf, np.inf, (1, 2), np.float64)
        self.action_space = Discrete(3, start=-1)
        self.length, self.truncate, self.fault = length, truncate, fault
        self.episode, self.at = -1, 0

    def _see(self) -> Any:
        if self.fault == "shape":
            return np.zeros((1, 2 if self.at < 2 else 3))
        value = np.nan if self.fault == "obs" and self.at == 2 else self.at
        return np.array([[self.episode, value]], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (-1, 0, 1)
        self.at += 1
        reward = np.nan if self.fault == "reward" and self.at == 2 else float(action)
        ended = self.at >= self.length
        return self._see(), reward, ended and not self.truncate, ended and self.truncate, {}


COUNTER = "tests.devices.test_primitives_envs:Counter"


@pytest.mark.parametrize("truncate", [False, True])
def test_a_callable_environment_gives_true_successors_at_episode_ends(truncate: bool) -> None:
    k = env_kernel(COUNTER, 2, 2, 0, length=3, truncate=truncate)
    buffers = fill_arrays([k])
    buffers["act.action"][:] = (0, 2)
    call = cpu.bind(k, "gymnasium", buffers)
    for firing in range(10):
        call()
        episode, at = divmod(firing, 3)
        assert buffers["step.obs"].tolist() == [[episode, at]] * 2
        assert buffers["step.next_obs"].tolist() == [[episode, at + 1]] * 2
        ended = at == 2
        assert buffers["step.terminated"].tolist() == [ended and not truncate] * 2
        assert buffers["step.truncated"].tolist() == [ended and truncate] * 2
        assert buffers["env.obs"].tolist() == [[episode + ended, 0 if ended else at + 1]] * 2
        assert buffers["step.reward"].tolist() == [-1.0, 1.0]
    assert buffers["episode.count"][0] == 6
    assert buffers["episode.returns"][:4].tolist() == [-3.0, 3.0, -3.0, 3.0]
    assert set(buffers["episode.lengths"][:6]) == {3}


@pytest.mark.parametrize(
    ("fault", "text"), [("obs", "observation"), ("reward", "reward"), ("shape", "shape")]
)
def test_a_faulty_environment_is_an_error_naming_environment_and_fault(
    fault: str, text: str
) -> None:
    k = env_kernel(COUNTER, 2, 2, 0, fault=fault)
    buffers = fill_arrays([k])
    call = cpu.bind(k, "gymnasium", buffers)
    call()
    with pytest.raises(ValueError, match=text) as error:
        call()
    assert "Counter'" in str(error.value)
    assert fault == "shape" or "number 0" in str(error.value)


class Numbered(Counter):
    """Observes a number: 2 at first, then `shown`."""

    def __init__(self, shown: int) -> None:
        super().__init__()
        self.observation_space, self.shown = Discrete(3, start=2), shown

    def _see(self) -> Any:
        return self.shown if self.at else 2


@pytest.mark.parametrize(("shown", "found"), [(1, None), (2, 0), (4, 2), (5, None)])
def test_states_are_counted_from_0_and_others_are_an_error(shown: int, found: int | None) -> None:
    sizes = {"envs": 2, "obs": 1, "act": 0, "states": 3}
    program = "tests.devices.test_primitives_envs:Numbered"
    k = kernel("env_step", sizes, program=program, args={"shown": shown})
    buffers = fill_arrays([k])
    call = cpu.bind(k, "gymnasium", buffers)
    assert buffers["env.obs"].tolist() == [[0], [0]]
    if found is None:
        with pytest.raises(ValueError, match=rf"number 0.*observation is {shown}; its space has 2"):
            call()
        return
    call()
    assert buffers["step.next_obs"].tolist() == [[found], [found]]
    k = kernel("env_step", {**sizes, "states": 4}, program=program, args={"shown": shown})
    with pytest.raises(UnsupportedError, match="the kernel has 4 states"):
        cpu.bind(k, "gymnasium", fill_arrays([k]))


def test_gymnasiums_batched_cartpole_never_yields_a_reset_as_a_transition() -> None:
    k = native_kernel("CartPole-v1", envs=8)
    buffers, random = fill_arrays([k]), np.random.default_rng(0)
    call = cpu.bind(k, "gymnasium", buffers)
    assert type(call.env).__name__ == "CartPoleVectorEnv"  # type: ignore[attr-defined]
    native = fill_arrays([k])
    check = cpu.bind(k, "native", native)
    for firing in range(700):
        random_actions(buffers, random)
        held = buffers["env.obs"].copy()
        state = np.array(call.env.state.T)  # type: ignore[attr-defined]
        call()
        np.testing.assert_array_equal(buffers["step.obs"], held)
        native["env.state"][:, :4], native["env.obs"][:] = state, held
        native["act.action"][:] = buffers["act.action"]
        check()
        for name in ("next_obs", "reward", "terminated"):
            np.testing.assert_allclose(
                buffers[f"step.{name}"], native[f"step.{name}"], rtol=3e-7, atol=1e-9
            )
        ended = (buffers["step.terminated"] | buffers["step.truncated"]).astype(bool)
        if ended.any():
            assert np.abs(buffers["env.obs"][ended]).max() <= 0.05
        np.testing.assert_array_equal(buffers["env.obs"][~ended], buffers["step.next_obs"][~ended])
        assert firing < 600 or buffers["episode.count"][0] > 30
    count = int(buffers["episode.count"][0])
    assert (buffers["episode.returns"][:count] == buffers["episode.lengths"][:count]).all()


def test_single_environments_give_the_episodes_that_gymnasium_gives_for_their_seeds() -> None:
    k, random = native_kernel("Acrobot-v1", envs=2), np.random.default_rng(3)
    buffers = fill_arrays([k])
    numbers = gym_make.draw_seeds(buffers, 2)
    call = cpu.bind(k, "gymnasium", buffers)
    envs: list[Any] = [gymnasium.make("Acrobot-v1") for _ in numbers]
    seen = [env.reset(seed=seed)[0] for env, seed in zip(envs, numbers, strict=True)]
    for _ in range(1100):
        random_actions(buffers, random, actions=3)
        np.testing.assert_array_equal(buffers["env.obs"], seen)
        call()
        for n, env in enumerate(envs):
            obs, reward, terminated, truncated, _ = env.step(buffers["act.action"][n])
            np.testing.assert_array_equal(buffers["step.next_obs"][n], obs)
            assert buffers["step.reward"][n] == reward
            assert buffers["step.terminated"][n] == terminated
            assert buffers["step.truncated"][n] == truncated
            seen[n] = env.reset()[0] if terminated or truncated else obs
    assert buffers["episode.count"][0] >= 4


def test_a_vector_environment_that_is_reset_by_mask_restarts_in_the_same_firing() -> None:
    class Masked(gymnasium.vector.SyncVectorEnv):
        pass

    longer = partial(Counter, length=4)
    env = Masked([Counter] * 3 + [longer] * 3, autoreset_mode=AutoresetMode.DISABLED)
    make: Any = lambda num_envs, **_: env  # noqa: E731
    gymnasium.register("Masked-v0", entry_point=COUNTER, vector_entry_point=make)
    try:
        k = env_kernel("Masked-v0", 6, 2, 0)
        buffers = fill_arrays([k])
        call = cpu.bind(k, "gymnasium", buffers)
        assert call.env is env  # type: ignore[attr-defined]
        for firing in range(7):
            call()
            found = zip(buffers["step.next_obs"], buffers["env.obs"], strict=True)
            for n, (successor, obs) in enumerate(found):
                length = 3 if n < 3 else 4
                episode, at = divmod(firing, length)
                assert successor.tolist() == [episode, at + 1]
                ended = at + 1 == length
                assert obs.tolist() == [episode + ended, 0 if ended else at + 1]
                assert buffers["env.elapsed"][n] == (at + 1) % length
    finally:
        del gymnasium.registry["Masked-v0"]


@pytest.mark.parametrize(("program", "sizes", "text"), [
    ("NoSuchEnv-v0", (4, 0), "NoSuchEnv-v0"),
    ("tests.no_such_module:Counter", (2, 0), "no_such_module"),
    ("tests.devices.test_primitives_envs:no_such_name", (2, 0), "no_such_name"),
    ("CartPole-v1", (5, 0), r"\(4, 0, 0\)"),
    ("Pendulum-v1", (3, 0), r"\(3, 1, 0\)"),
])  # fmt: skip
def test_an_environment_that_cannot_be_made_or_does_not_fit_is_unsupported(
    program: str, sizes: tuple[int, int], text: str
) -> None:
    k = env_kernel(program, 2, *sizes)
    with pytest.raises(UnsupportedError, match=text):
        cpu.bind(k, "gymnasium", fill_arrays([k]))


def test_an_environment_is_restored_by_its_seed_or_its_generator_or_neither():
    told = []

    def reset(**how):
        told.append(how)
        return "begin", {}

    env = SimpleNamespace(reset=reset, step=lambda action: (action, 0.0, False, False, {}))
    env.unwrapped = env
    state = np.random.default_rng(3).bit_generator.state
    assert replay_actions(env, {"seed": 3}, []) == replay_actions(env, None, []) == "begin"
    assert not hasattr(env, "np_random")
    assert replay_actions(env, state, ["left", "right"]) == "right"
    assert env.np_random.integers(99) == np.random.default_rng(3).integers(99)
    assert told == [{"seed": 3}, {}, {}]
