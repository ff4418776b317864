"""Spaces of environments: what is trained, evaluated and refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import pearl
from pearl.errors import SpecError
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Buffers, UnsupportedError, cpu, kernel
from tests.training import own_spaces

HERE = "tests.training.own_spaces"


def spec(name: str, env: str = "Spaced", **algorithm: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"num_envs": 2, "hidden": [8]}
    replay = {"batch_size": 8, "learning_starts": 8, "replay": {"capacity": 100}}
    sizes |= {"rollout_steps": 8} if name in ("ppo", "a2c") else replay
    return {
        "algorithm": {"name": name, "env": f"{HERE}:{env}", **sizes, **algorithm},
        "train": {"steps": 64, "evaluate_every": 32, "evaluate_episodes": 2, "final_episodes": 2},
    }


@pytest.mark.parametrize(("name", "actions"),
                         [("dqn", "start"), ("ppo", "start"), ("ppo", "factored"),
                          ("a2c", "started"), ("ppo", "binary"), ("ppo", "unbounded"),
                          ("a2c", "half")])  # fmt: skip
def test_every_action_that_is_taken_and_evaluated_is_one_of_the_space(name, actions):
    """A step whose action is not in the space has no reward."""
    trainer = pearl.compile(spec(name, env_args={"actions": actions}))
    run = trainer.train()
    assert run.returns["mean_last_20"] == 5.0
    assert run.returns["eval_mean"] == 5.0
    space, chosen = own_spaces.SPACES[actions], trainer.policy.act(np.zeros((4, 3), np.float32))
    taken = [int(a) if chosen.ndim == 1 else a.astype(space.dtype) for a in chosen]
    assert all(space.contains(a) for a in taken)


@pytest.mark.parametrize(
    ("name", "actions", "said"),
    [("dqn", "factored", "dqn needs one number or a Box; ppo and a2c take them"),
     ("sac", "unbounded", "sac acts between bounds"), ("td3", "half", "td3 acts between bounds")],
)  # fmt: skip
def test_what_an_algorithm_cannot_take_is_a_sentence_with_the_way_out(name, actions, said):
    with pytest.raises(SpecError, match=said):
        pearl.load(spec(name, env_args={"actions": actions}))


def stepped(env: str, steps: int, envs: int = 2, **dims: Any) -> tuple[Buffers, list[Buffers]]:
    """The arrays of a step, and copies of them after each firing."""
    sizes = {"obs": 3, "act": 2, "choices": 5, **dims}
    k = kernel("env_step", {**sizes, "envs": envs}, program=f"{HERE}:{env}")
    b, seen = fill_arrays([k]), []
    call = cpu.bind(k, "gymnasium", b)
    for _ in range(steps):
        b["act.action"][:] = 0
        call()
        seen.append({name: array.copy() for name, array in b.items()})
    return b, seen


@pytest.mark.parametrize("env", ["same_step", "next_step", "disabled", "apart"])
def test_a_vector_environment_of_ones_own_gives_true_transitions_in_every_autoreset_mode(env):
    b, seen = stepped(env, 12)
    for n, length in enumerate((3, 4)):
        for t, after in enumerate(seen):
            at = t % length
            assert after["step.obs"][n, 0] == at
            assert after["step.next_obs"][n, 0] == at + 1
            assert after["step.terminated"][n] == (at + 1 == length)
            assert after["step.reward"][n] == 1.0
            assert after["env.obs"][n, 0] == (at + 1) % length
    assert b["episode.count"][0] == 4 + 3
    assert sorted(b["episode.lengths"][:7]) == [3] * 4 + [4] * 3


def test_a_vector_environment_that_cannot_be_used_is_a_sentence() -> None:
    with pytest.raises(SpecError, match="must have a parameter num_envs"):
        pearl.load(spec("ppo", "fixed"))
    with pytest.raises(UnsupportedError, match="spends a step on each reset"):
        stepped("unsaid", 1)


def test_observations_of_several_parts_are_flattened_in_a_stated_order_and_images_scaled() -> None:
    system = pearl.load(spec("ppo", env_args={"actions": "factored", "observations": "dict"}))
    assert system.env.note == (
        "observations are flattened into one vector, in order camera (16), where (2); 16 pixels of "
        "images are scaled from 0 … 255 to 0 … 1"
    )
    trainer = pearl.compile(system)
    assert system.env.note in trainer.plan.note
    run = trainer.train()
    assert run.returns["eval_mean"] == 5.0
    env = own_spaces.Spaced("factored", "dict")
    flat = gymnasium.spaces.flatten(env.observation_space, env.reset()[0])
    weights = trainer.policy.tensors()
    hidden = np.tanh((np.r_[np.ones(16), flat[16:]]) @ weights["0.weight"].T + weights["0.bias"])
    out = hidden @ weights["2.weight"].T + weights["2.bias"]
    assert trainer.policy.act(flat).tolist() == [out[:2].argmax(), out[2:].argmax()]
