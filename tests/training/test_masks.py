"""An environment that offers an action mask is refused before a network learns illegal actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import pearl
from pearl.errors import SpecError
from pearl_devices import UnsupportedError, cpu, kernel
from pearl_devices.base import EnvironmentFailed
from pearl_devices.buffers import allocate
from tests.lanes import replay_spec

HERE = "tests.training.masked"
OFFERS = {"Masked": r"info\['action_mask'\] at its reset", "Asking": r"a method action_masks\(\)",
          "vector": r"info\['action_mask'\] at its reset",
          "asking_vector": r"a method action_masks\(\)",
          "in_processes": r"a method action_masks\(\)"}  # fmt: skip
STATED = {"obs": 2, "actions": 3}
TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-"))


def stepping(name: str, args: dict[str, Any], envs: int = 2) -> Any:
    """A bound step of an environment of `tests.training.masked`, and its arrays."""
    k = kernel("env_step", envs=envs, obs=2, act=0, program=f"{HERE}:{name}", args=args)
    arrays = allocate([k])
    return cpu.bind(k, "gymnasium", arrays), arrays


def asked(env: str, limits: dict[str, Any] | None = None, **algorithm: Any) -> dict[str, Any]:
    return replay_spec("dqn", {"max_lanes": 1, **(limits or {})}, env=env, **algorithm)


@pytest.mark.parametrize("name", OFFERS)
def test_a_spec_is_refused_when_it_is_read(name: str) -> None:
    with pytest.raises(SpecError, match=f"'{HERE}:{name}' offers an action mask, {OFFERS[name]}"):
        pearl.load(asked(f"{HERE}:{name}"))
    with pytest.raises(SpecError, match=r"illegal would be chosen and learned from.*unmasked"):
        pearl.load(asked(TAXI))


@pytest.mark.parametrize("name", OFFERS)
def test_the_first_reset_in_training_refuses_it(name: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"'{HERE}:{name}' offers.*{OFFERS[name]}"):
        stepping(name, {})


@pytest.mark.parametrize("name", ["Masked", "vector"])
def test_a_later_reset_refuses_it_too_and_does_not_make_it_anew(name: str) -> None:
    step, _ = stepping(name, {"since": 1})
    heard: list[str] = []
    step.on_failure = lambda text, lost: heard.append(text)
    for _ in range(2):
        step()
    with pytest.raises(EnvironmentFailed, match="offers an action mask"):
        step()
    assert heard == []


@pytest.mark.parametrize("groups", [1, 2])
def test_a_run_whose_spec_states_the_spaces_does_not_begin(groups: int) -> None:
    limits = {"env_groups": groups, "policy_lag": groups - 1, "max_lanes": 1}
    spec = asked(f"{HERE}:Masked", limits, spaces=STATED)
    trainer = pearl.compile({**spec, "platform": "cpu_gpu"}, emulate=True)
    with pytest.raises((UnsupportedError, EnvironmentFailed), match="offers an action mask"):
        trainer.train(steps=64)
    assert not trainer.session.arrays["replay.cursor"].any()


def test_a_run_whose_environment_offers_one_later_ends_with_the_reason() -> None:
    spec = asked(f"{HERE}:Masked", env_args={"since": 2})
    spec["train"]["on_env_failure"] = "restart"
    run = pearl.compile({**spec, "platform": "cpu_gpu"}, emulate=True).train(steps=200)
    assert run.status == "failed"
    assert "offers an action mask" in run.message


def test_the_way_out_plays_the_environment_as_it_is() -> None:
    way = {"env": "pearl_devices.masks:unmasked", "env_args": {"env": TAXI}}
    system = pearl.load({"algorithm": {"name": "q_learning", **way}, "platform": "cpu_gpu"})
    assert (system.env.states, system.env.actions) == (500, 6)
    assert system.env.max_episode_steps == gymnasium.spec(TAXI).max_episode_steps
    k = kernel(
        "env_step", envs=2, obs=1, act=0, states=500, program=way["env"], args=way["env_args"]
    )
    arrays = allocate([k])
    step = cpu.bind(k, "gymnasium", arrays)
    one = gymnasium.make(TAXI)
    seen, info = one.reset(seed=step.origins[0]["seed"])
    assert "action_mask" in info
    for action in (0, 1, 2, 3, 4, 5):
        arrays["act.action"][:] = action
        step()
        seen, reward, *_ = one.step(action)
        assert (arrays["step.next_obs"][0, 0], arrays["step.reward"][0]) == (seen, reward)
