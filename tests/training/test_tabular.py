"""Tabular Q-learning and SARSA: single updates by hand, and the optimum by value iteration."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import pearl
from pearl.errors import SpecError
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Buffers, cpu, kernel

Array = npt.NDArray[np.float64]


def model(env: Any) -> tuple[Array, Array]:
    """Probabilities of going on to each state (S, A, S), none after an end, and mean rewards."""
    moves = env.unwrapped.P
    size = len(moves), len(moves[0])
    chance, reward = np.zeros((*size, size[0])), np.zeros(size)
    for s, actions in moves.items():
        for a, outcomes in actions.items():
            for p, ahead, r, over in outcomes:
                reward[s, a] += p * r
                chance[s, a, ahead] += p * (not over)
    return chance, reward


def optimum(chance: Array, reward: Array, discount: float) -> Array:
    value = np.zeros(len(reward))
    for _ in range(100_000):
        better: Array = (reward + discount * chance @ value).max(axis=1)
        if np.abs(better - value).max() < 1e-12:
            return better
        value = better
    raise AssertionError("value iteration did not end")


def value_of(actions: Any, chance: Array, reward: Array, discount: float) -> Array:
    rows = np.arange(len(reward))
    system = np.eye(len(reward)) - discount * chance[rows, actions]
    return np.linalg.solve(system, reward[rows, actions])


RUNS: dict[tuple[str, str], dict[str, Any]] = {
    ("q_learning", "Taxi-v4"): {"algorithm.env": "pearl_devices.masks:unmasked",
                                "algorithm.env_args": {"env": "Taxi-v4"},
                                "algorithm.learning_rate": 0.5,
                                "algorithm.learning_rate_power": 0.0,
                                "algorithm.exploration.steps": 180_000},
    ("q_learning", "CliffWalking-v1"): {"algorithm.env_args": {"max_episode_steps": 500},
                                        "algorithm.learning_rate": 0.5,
                                        "algorithm.learning_rate_power": 0.0,
                                        "algorithm.exploration": {"initial": 0.3, "final": 0.1,
                                                                  "steps": 90_000},
                                        "train.steps": 100_000},
    ("q_learning", "FrozenLake-v1"): {}, ("sarsa", "CliffWalking-v1"): {},
    ("sarsa", "FrozenLake-v1"): {"algorithm.env_args": {}, "algorithm.num_envs": 8,
                                 "algorithm.learning_rate": 1.0,
                                 "algorithm.learning_rate_power": 0.6,
                                 "algorithm.exploration": {"initial": 1.0, "final": 0.0,
                                                           "steps": 200_000},
                                 "train.steps": 200_000},
}  # fmt: skip
CONFIGS = {"q_learning": "q_learning_frozenlake", "sarsa": "sarsa_cliffwalking"}


@pytest.mark.parametrize(
    ("name", "env"),
    [pytest.param(*run, marks=[pytest.mark.slow] * ("Taxi-v4" in run)) for run in RUNS],
)
def test_the_greedy_policy_is_within_two_per_cent_of_the_optimum(name: str, env: str) -> None:
    changes = {"algorithm.env": env, "train.final_episodes": 0, **RUNS[name, env]}
    trainer = pearl.compile(CONFIGS[name], set=changes)
    trainer.train()
    made, discount = gymnasium.make(env), trainer.system.algorithm.discount
    chance, reward = model(made)
    actions = trainer.policy.act(np.arange(len(reward)))
    start = np.asarray(made.unwrapped.initial_state_distrib)  # type: ignore[attr-defined]
    best = start @ optimum(chance, reward, discount)
    found = start @ value_of(actions, chance, reward, discount)
    assert best - found <= 0.02 * abs(best)
    assert found <= best + 1e-9


# Single updates

SIZES: dict[str, Any] = {"envs": 3, "obs": 1, "act": 0, "states": 4, "actions": 2}


def step(name: str) -> Buffers:
    """Three transitions from states 0, 1, 2 to 3: one goes on, one terminated, one was truncated.
    Q(3, ·) is (10, 20)."""
    buffers = fill_arrays([kernel(f"tabular.{name}", SIZES), kernel("tabular.choose", SIZES)])
    buffers["policy.q"][:] = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [10.0, 20.0]]
    buffers["step.obs"][:, 0], buffers["step.next_obs"][:] = (0, 1, 2), 3
    buffers["step.action"][:], buffers["step.reward"][:] = 0, 1.0
    buffers["step.terminated"][:], buffers["step.truncated"][:] = (0, 1, 0), (0, 1, 1)
    buffers["hyper.lr.q"][:], buffers["hyper.discount"][:] = (0.5, 0.0), 0.9
    buffers["explore"][:] = 0.0
    buffers["rng.env_step"][1] = 1
    return buffers


def test_q_learning_bootstraps_after_truncation_and_not_after_termination() -> None:
    buffers = step("q_learning")
    cpu.bind(kernel("tabular.q_learning", SIZES), "native", buffers)()
    ahead = 1.0 + 0.9 * 20.0
    expected = [0.5 * (1 + ahead), 0.5 * (2 + 1), 0.5 * (3 + ahead)]
    np.testing.assert_allclose(buffers["policy.q"][:3, 0], expected)
    errors = np.array([ahead - 1, 1.0, ahead - 3])
    np.testing.assert_allclose(buffers["batch.td"], errors)
    assert buffers["loss.q"][0] == pytest.approx(0.5 * np.mean(errors**2))


def test_sarsa_takes_the_next_action_and_after_truncation_one_of_its_own() -> None:
    buffers = step("sarsa")
    buffers["act.action"][:] = 0  # of the next episode where one ended
    cpu.bind(kernel("tabular.sarsa", SIZES), "native", buffers)()
    next_action, drawn = 1.0 + 0.9 * 10.0, 1.0 + 0.9 * 20.0
    expected = [0.5 * (1 + next_action), 0.5 * (2 + 1), 0.5 * (3 + drawn)]
    np.testing.assert_allclose(buffers["policy.q"][:3, 0], expected)


def test_sarsa_learns_nothing_before_the_first_step() -> None:
    buffers = step("sarsa")
    buffers["rng.env_step"][1] = 0
    before = buffers["policy.q"].copy()
    cpu.bind(kernel("tabular.sarsa", SIZES), "native", buffers)()
    np.testing.assert_array_equal(buffers["policy.q"], before)
    assert buffers["learner.step"][0] == 0


def test_step_sizes_fall_with_the_updates_of_an_entry() -> None:
    buffers = step("q_learning")
    buffers["hyper.lr.q"][:] = 1.0, 0.5
    buffers["hyper.discount"][:] = 0.0
    call = cpu.bind(kernel("tabular.q_learning", SIZES), "native", buffers)
    value = 1.0
    for n in range(1, 6):
        buffers["step.reward"][0] = n
        call()
        value += n**-0.5 * (n - value)
        assert buffers["policy.q"][0, 0] == pytest.approx(value)
    assert buffers["learner.q.visits"][0, 0] == 5


def test_equal_values_are_chosen_evenly_and_random_actions_by_their_share() -> None:
    sizes = {**SIZES, "envs": 4000}
    buffers = fill_arrays([kernel("tabular.choose", sizes)])
    call = cpu.bind(kernel("tabular.choose", sizes), "native", buffers)
    buffers["policy.q"][:] = 0.0
    for share, values, expected in ((0.0, 0.0, 0.5), (0.0, 1.0, 1.0), (0.5, 1.0, 0.75)):
        buffers["policy.q"][:, 1] = values
        buffers["explore"][:] = share, share, 1.0, 0.0
        call()
        assert np.mean(buffers["act.action"]) == pytest.approx(expected, abs=0.03)


def test_what_is_not_discrete_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="CartPole-v1 has no discrete observations; q_learning"):
        pearl.load({"algorithm": {"name": "q_learning", "env": "CartPole-v1"}})
