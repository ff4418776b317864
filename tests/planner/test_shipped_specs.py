"""Shipped specs whose plans use more than one lane of a CPU: a GPU, an FPGA, several lanes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import pearl
from pearl.planning.plans import Plan
from pearl.spec.checks import shipped

XEON = {"platform": {"devices": {"cpu": "xeon_gold_6326"}}}
"""A catalogue's CPU, so that a plan is the same whatever machine asks."""


class Slow(gymnasium.Env[Any, Any]):
    """Spaces as of HalfCheetah-v5, and a step that takes a while."""

    observation_space = Box(-np.inf, np.inf, (17,), np.float64)
    action_space = Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=17), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.0005)
        return self.np_random.normal(size=17), -float(np.square(action).sum()), False, False, {}


def devices(plan: Plan) -> dict[str, str]:
    return {t.task: t.device for t in plan.tasks}


def test_one_shipped_spec_plans_its_learner_on_a_gpu() -> None:
    plan = pearl.plan("dqn_cartpole_gpu")
    on = devices(plan)
    assert {on[t] for t in ("update", "replay_sample", "inference")} == {"gpu"}
    assert on["env_step"] == "cpu"
    small = pearl.plan(pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"}))
    assert set(devices(small).values()) == {"cpu"}  # as the comment of the spec says


def test_one_shipped_spec_plans_its_learner_on_an_fpga() -> None:
    plan = pearl.plan("dqn_cartpole_fpga")
    assert devices(plan)["update"] == "fpga"
    comment = " ".join(line.lstrip("# ") for line in shipped()["dqn_cartpole_fpga"].splitlines())
    cpu_gpu = {t: ["cpu"] for t in devices(plan)}
    alone = pearl.plan(pearl.load("dqn_cartpole_fpga", set={"limits.devices": cpu_gpu}))
    ours, theirs = f"{plan.env_steps_per_j:.0f}", f"{alone.env_steps_per_j:.0f}"
    assert f"{ours} env steps a joule by the estimates, {theirs} on the CPU alone" in comment


def test_one_shipped_spec_plans_several_lanes() -> None:
    plan = pearl.plan(pearl.load("ppo_halfcheetah", set=XEON))
    lanes = {t.lane for t in plan.tasks if t.task.startswith("env_step")}
    assert len(lanes) == 2
    assert len(plan.lanes) <= 4


@pytest.mark.parametrize("name", ["dqn_cartpole_gpu", "dqn_cartpole_fpga"])
def test_a_spec_for_a_machine_that_is_not_here_says_so_when_trained(name: str) -> None:
    with pytest.raises(pearl.SpecError, match="which this machine lacks; emulate the plan"):
        pearl.compile(name)


def test_the_spec_of_an_fpga_trains_on_the_clock_of_its_plan(tmp_path: Path) -> None:
    run = pearl.compile("dqn_cartpole_fpga", emulate=True).train(steps=1200, out=tmp_path / "run")
    assert run.status == "done"
    assert run.simulated
    assert run.updates > 0


@pytest.mark.slow
def test_the_spec_of_several_lanes_trains_on_them(tmp_path: Path) -> None:
    changed = {"algorithm.env": f"{__name__}:Slow", "train.evaluate_every": 0}
    changed |= {"algorithm.num_envs": 4, "algorithm.rollout_steps": 4, "algorithm.epochs": 1}
    changed |= {"algorithm.minibatches": 2, "train.final_episodes": 0}
    trainer = pearl.compile("ppo_halfcheetah", set=changed)
    assert len({t.lane for t in trainer.plan.tasks if t.task.startswith("env_step")}) == 2
    assert trainer.train(steps=64, out=tmp_path / "run").status == "done"


def test_readme_names_every_shipped_spec() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert [name for name in shipped() if f"`{name}`" not in readme] == []
