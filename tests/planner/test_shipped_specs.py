"""Shipped specs whose plans use more than one lane of a CPU: a GPU, an FPGA, several lanes."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import pearl
from pearl.planning.plans import Plan
from pearl.spec.checks import read_shipped
from pearl_devices import discover
from tests.lanes import SECONDS, differing, planned, trained

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
    assert {on[t] for t in ("learn", "sample", "act")} == {"gpu"}
    assert on["step"] == "cpu"
    small = pearl.plan(pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"}))
    assert set(devices(small).values()) == {"cpu"}  # as the comment of the spec says


def test_one_shipped_spec_plans_its_learner_on_an_fpga() -> None:
    plan = pearl.plan("dqn_cartpole_fpga", time_limit_s=200.0)
    assert devices(plan)["learn"] == "fpga"
    comment = " ".join(
        line.lstrip("# ") for line in read_shipped()["dqn_cartpole_fpga"].splitlines()
    )
    cpu_gpu = {t: ["cpu"] for t in devices(plan)}
    cpu_alone = pearl.load("dqn_cartpole_fpga", set={"limits.devices": cpu_gpu})
    alone = pearl.plan(cpu_alone, time_limit_s=200.0)
    ours, theirs = f"{plan.env_steps_per_j:.0f}", f"{alone.env_steps_per_j:.0f}"
    assert f"{ours} env steps a joule by the estimates, {theirs} on the CPU alone" in comment


@pytest.mark.parametrize("objective", ["power_efficiency", "throughput"])
def test_with_the_released_design_that_spec_is_planned_on_the_cpu_alone(objective: str) -> None:
    system = pearl.load("dqn_cartpole_fpga", set={"objective": objective})
    board = system.platform.device("fpga")
    others = tuple(d for d in system.platform.devices if d != board)
    released = replace(system.platform, devices=(*others, replace(board, design="released")))
    plan = pearl.plan(replace(system, platform=released))
    assert set(devices(plan).values()) == {"cpu"}


def test_one_shipped_spec_plans_several_lanes() -> None:
    plan = pearl.plan(pearl.load("ppo_halfcheetah", set=XEON))
    lanes = {t.lane for t in plan.tasks if t.task.startswith("step")}
    assert len(lanes) == 2
    assert len(plan.lanes) <= 4


ELSEWHERE = ["dqn_cartpole_gpu", "dqn_cartpole_fpga"]
"""Specs for machines with devices that a test has not."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_spec_for_a_machine_that_is_not_here_says_so_when_trained(name: str) -> None:
    with pytest.raises(pearl.SpecError, match="which this machine lacks; emulate the plan"):
        pearl.compile(name)


def test_the_spec_of_an_fpga_trains_on_the_clock_of_its_plan(tmp_path: Path) -> None:
    run = pearl.compile("dqn_cartpole_fpga", emulate=True).train(steps=1200, out=tmp_path / "run")
    assert run.status == "done"
    assert run.simulated
    assert run.updates > 0


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has two cores, whatever it has."""
    monkeypatch.setattr(discover, "_cores", lambda chip: (2, "as a test says"))


BRIEF = {"train.evaluate_every": 0, "train.final_episodes": 0}


def trains(trainer: pearl.Trainer, tmp_path: Path) -> None:
    """It trains for three iterations and, of a replay, until gradient steps are taken."""
    fill = getattr(trainer.system.algorithm, "learning_starts", 0)
    run = trainer.train(steps=fill + 3 * trainer.graph.env_steps, out=tmp_path / "run")
    assert (run.status, run.updates > 0) == ("done", True)


@pytest.mark.parametrize("name", [n for n in read_shipped() if n != "ppo_halfcheetah"])
def test_a_shipped_spec_trains_on_two_cores(name: str, two_cores: None, tmp_path: Path) -> None:
    trains(pearl.compile(name, set=BRIEF, emulate=name in ELSEWHERE), tmp_path)


def test_the_spec_of_several_lanes_trains_on_two_cores(two_cores: None, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    trains(pearl.compile("ppo_halfcheetah", set=BRIEF), tmp_path)


@pytest.mark.slow
def test_the_plan_of_several_lanes_trains_at_its_sizes(two_cores: None, tmp_path: Path) -> None:
    trainer = pearl.compile("ppo_halfcheetah", set={**BRIEF, "algorithm.env": f"{__name__}:Slow"})
    assert len({t.lane for t in trainer.plan.tasks if t.task.startswith("step")}) == 2
    trains(trainer, tmp_path)


def test_the_sizes_of_several_lanes_train_with_a_native_environment() -> None:
    """The plan is as of an environment with slow steps on two cores; one copy of it may be 29 steps
    further ahead of the rollout than the other, as in plans for HalfCheetah."""
    document = copy.deepcopy(dict(pearl.load("ppo_halfcheetah", set=BRIEF).raw))
    document["algorithm"]["env"] = "Pendulum-v1"
    del document["algorithm"]["spaces"]
    seconds = {**SECONDS, "step": 32 * 0.3e-3}
    system, plan = planned(document, seconds=seconds, cores=2, method="heft")
    room = [replace(e, capacity=e.capacity and e.capacity + 29 * e.src_replica) for e in plan.edges]
    assert plan.task("step").replicas == 2
    even = trained(system, plan, "one", steps=2 * 1024)
    uneven = trained(system, replace(plan, edges=tuple(room)), "threads", steps=2 * 1024)
    assert even.run.updates > 0
    assert differing(even, uneven) == []


@pytest.mark.parametrize("name", ["dqn_cartpole", "ppo_cartpole"])
def test_by_the_data_sheet_a_whole_iteration_is_one_call(name: str) -> None:
    """A first run is planned by it: a second plan would have to be compiled anew."""
    plan = pearl.plan(pearl.load(name, set={"platform": {"devices": {"cpu": "xeon_gold_6326"}}}))
    assert {t.rung for t in plan.tasks} == {"datasheet"}
    assert {len(t.fused_with) + 1 for t in plan.tasks} == {len(plan.tasks)}


def test_readme_names_every_shipped_spec() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert [name for name in read_shipped() if f"`{name}`" not in readme] == []
