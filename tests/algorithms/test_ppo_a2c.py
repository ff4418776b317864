"""PPO and A2C as whole systems: plans, options, training."""

from __future__ import annotations

from typing import Any

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.errors import SpecError
from pearl.planning.plans import Plan


def spec(name: str, env: str = "CartPole-v1", **options: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"epochs": 2, "minibatches": 2} if name == "ppo" else {}
    given = {"num_envs": 4, "rollout_steps": 8, "hidden": [16, 16], **own, **options}
    train = {"steps": 640, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 320}
    return {"algorithm": {"name": name, "env": env, **given}, "train": train}


def plan_with(given: dict[str, Any], **variants: str) -> Plan:
    limits = {task: [variant] for task, variant in variants.items()}
    return pearl.plan(pearl.load(given, set={"limits.variants": limits}))


@pytest.mark.parametrize("platform", ["cpu_gpu", "cpu_h200", "cpu_gpu_fpga"])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_every_platform_has_a_plan(name: str, platform: str) -> None:
    system = pearl.load(spec(name), set={"platform": platform})
    found = pearl.plan(system)
    assert found.status == "optimal"
    large = {"platform": platform, "algorithm.hidden": [2048, 2048], "algorithm.num_envs": 512}
    moved = pearl.plan(pearl.load(spec(name), set=large))
    assert moved.task("update").device != system.platform.host
    outside = {**large, "limits": {"variants": {"env_step": ["gymnasium"]}}}
    apart = pearl.plan(pearl.load(spec(name), set=outside))
    assert apart.task("update").device != system.platform.host
    assert apart.task("env_step").device == system.platform.host


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_options_of_a_replay_are_refused(name: str) -> None:
    own = algorithm(name).Options.__pydantic_fields__
    others = algorithm("dqn").Options.__pydantic_fields__.keys() - own.keys()
    assert len(others) > 5
    for key in others:
        with pytest.raises(SpecError, match=rf"algorithm.{key}: a key of algorithm dqn"):
            pearl.load(spec(name), set={f"algorithm.{key}": 1})


@pytest.mark.parametrize(("name", "env"), [("a2c", "Pendulum-v1"), ("ppo", "CartPole-v1")])
def test_torch_and_gymnasium_train_too(name: str, env: str) -> None:
    """No longer run: each of the two in the environment of the other one."""
    given = spec(name, env)
    torch = dict.fromkeys(("inference", "rollout_insert", "gae", "update"), "torch")
    plan = plan_with(given, env_step="gymnasium", **torch)
    assert {plan.task(t).variant for t in (*torch, "env_step")} == {"torch", "gymnasium"}
    system = pearl.load(given, set={"limits.variants": {}})
    run = pearl.compile(system, plan=plan).train()
    assert run.status == "done"
    assert run.updates == 20 * (4 if name == "ppo" else 1)


def test_a_spec_that_normalises_trains_without_fused_calls() -> None:
    given = spec("ppo", "Pendulum-v1", normalise={"observations": True, "rewards": True})
    trainer = pearl.compile(given)
    assert trainer.graph.fusions == ()
    assert trainer.train().status == "done"
