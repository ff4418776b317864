"""An algorithm of the user's own: a module named in the spec, its torch loss, no native code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pearl
from examples import own_algorithm
from pearl.errors import SpecError
from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl_devices import UnsupportedError, cpu, kernel
from pearl_devices.primitives.math import rng
from tests.examples import SMALL_DQN

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "algorithm": {**SMALL_DQN, "name": "examples.own_algorithm", "options": {"temperature": 0.05}},
    "train": {"steps": 800, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 400},
}


def test_the_example_is_whole_in_less_than_sixty_lines() -> None:
    assert len((ROOT / "examples/own_algorithm.py").read_text().splitlines()) < 60


@pytest.mark.slow
def test_the_example_learns_to_balance_the_pole() -> None:
    changes = {"train.steps": 8000, "train.seed": 1, "algorithm.exploration.steps": 3000}
    run = pearl.compile(own_algorithm.SPEC, set=changes).train()
    assert run.returns["mean_last_20"] >= 80  # random play reaches about 22


def test_the_spec_of_the_how_to_loads_and_its_options_reach_the_loss(tmp_path: Path) -> None:
    (text,) = (
        part.partition("```")[0]
        for part in (ROOT / "docs/own_algorithm.md").read_text().split("```yaml\n")[1:]
    )
    (tmp_path / "spec.yaml").write_text(text)
    trainer = pearl.compile(tmp_path / "spec.yaml")
    assert dict(trainer.graph.task("learn").kernel.args) == {"temperature": 0.05}
    assert trainer.plan.task("learn").variant == "torch"
    assert trainer.graph.fusions == ()


def test_options_change_what_is_learnt_and_a_wrong_one_is_refused_by_name() -> None:
    results = []
    for temperature in (0.05, 0.5):
        changes = {"algorithm.options": {"temperature": temperature}, "train.steps": 200}
        trainer = pearl.compile(SMALL, set=changes)
        trainer.train()
        results.append(trainer.session.arrays["learner.q"].copy())
    assert not np.array_equal(*results)
    with pytest.raises(UnsupportedError, match=r"own_algorithm:losses cannot .*'warmth'"):
        pearl.compile(SMALL, set={"algorithm.options": {"warmth": 1}}).train()


@pytest.mark.parametrize(("name", "says"), [
    ("no_such.module", "its module no_such.module cannot be imported"),
    (
        "pearl.graph.task_graph",
        "task_graph.py is no algorithm: it has no POLICY, graph, initialise, losses",
    ),
    ("not a.module", "allowed: the path of a module"),
    ("mine", "allowed are dqn, ddpg, td3, sac, ppo, a2c, q_learning, sarsa, a module path"),
])  # fmt: skip
def test_a_name_that_is_no_algorithm_is_a_line_that_says_why(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=r"algorithm\.name") as refused:
        pearl.load(SMALL, set={"algorithm.name": name})
    assert says in str(refused.value)


# Kernels of an algorithm that nobody has counted


def own_update(steps: int = 6) -> Any:
    sizes: dict[str, Any] = {"value": (3, 8, 1), "level": (0, 1), "obs": 3, "act": 0}
    sizes |= {"batch": 8, "steps": steps}
    return kernel("update.mine", sizes, program="tests.own_losses:sometimes", args={"scale": 2.0})


def test_a_network_that_moves_now_and_then_counts_its_own_steps_of_adam() -> None:
    k = own_update(steps=7)
    buffers = fill_arrays([k])
    for name in ("learner.level.m", "learner.level.v", "learner.level"):
        buffers[name][:] = 0.0
    cpu.bind(k, "torch", buffers)()
    assert buffers["learner.value.steps"][0] == 7
    assert buffers["learner.level.steps"][0] == 2
    # A first step of Adam is the learning rate, whatever the gradient; the second is no larger.
    assert 1e-4 < abs(buffers["learner.level"][0]) < 2.01e-3


def test_its_noise_depends_on_the_gradient_step_and_not_on_the_grouping() -> None:
    k = own_update(6)
    block = fill_arrays([k])
    single = copied(block)
    cpu.bind(k, "torch", block)()
    for s in range(6):
        part = {n: a[s : s + 1].copy() if n.startswith("batch.") else a for n, a in single.items()}
        cpu.bind(own_update(1), "torch", part)()
        single["batch.td"][s] = part["batch.td"][0]
    assert equal(block, single) == []


def acting(program: str) -> Any:
    q: tuple[int, ...] = (3, 8, 4)
    return kernel("inference.mine", program=program, envs=16, obs=3, act=0, q=q)


def test_a_program_may_choose_the_actions() -> None:
    k = acting("tests.own_losses:softmax")
    buffers = fill_arrays([k])
    buffers["env.obs"][:] = np.random.default_rng(0).normal(size=buffers["env.obs"].shape)
    greedy = cpu.act(k, buffers["policy.q"], buffers["env.obs"])
    for temperature, least, most in ((1e-3, 0.95, 1.0), (1e3, 0.1, 0.5)):
        buffers["explore"][:] = temperature, temperature, 1.0, 0.0
        call = cpu.bind(k, "torch", buffers)
        same = []
        for _ in range(50):
            call()
            same.append(np.mean(buffers["act.action"] == greedy))
        assert least <= np.mean(same) <= most
    assert buffers["rng.inference"][1] == 100


TOLD: list[tuple[Any, ...]] = []


def noting(nets: Any, obs: Any, explore: float | None, noise: Any) -> Any:
    """Notes what an acting program is told. The actions are the first observations."""
    drawn = [noise.uniform(3).tolist(), noise.normal(2).tolist()] if noise else None
    TOLD.append((explore, drawn))
    return torch.as_tensor(obs)[:, 0].long()


def test_a_program_is_told_the_share_of_its_env_step_and_draws_from_its_firings_stream() -> None:
    k = acting("tests.devices.test_own_algorithm:noting")
    buffers = fill_arrays([k])
    buffers["env.obs"][:, 0] = np.arange(16) % 4
    buffers["explore"][:] = 0.9, 0.1, 80.0, 32.0
    call = cpu.bind(k, "torch", buffers)
    TOLD.clear()
    for _ in range(7):
        call()
    # 16 env steps a firing: the first two are random, and the share falls until 80 env steps
    shares = [0.9 - 0.8 * min(steps / 80, 1) for steps in (32, 48, 64, 80, 96)]
    assert [share for share, _ in TOLD] == pytest.approx(shares)
    for firing, (_, drawn) in enumerate(TOLD, start=2):
        base = np.uint64(rng.stream_base(buffers["rng.inference"][0], np.uint64(firing)))
        uniforms, normals = np.zeros(3, np.float32), np.zeros(2, np.float32)
        rng.uniforms(base, 0, uniforms)
        rng.normals(base, 4, normals)  # pairs begin at even numbers
        assert drawn == [uniforms.tolist(), normals.tolist()]
    assert buffers["rng.inference"][1] == 7
    assert np.array_equal(buffers["act.action"], np.arange(16) % 4)
    TOLD.clear()
    assert np.array_equal(cpu.act(k, buffers["policy.q"], buffers["env.obs"]), np.arange(16) % 4)
    assert TOLD == [(None, None)]
    for wrong in (-1, 4):
        buffers["env.obs"][:, 0] = 1
        buffers["env.obs"][3, 0] = wrong
        least, most = min(wrong, 1), max(wrong, 1)
        with pytest.raises(
            ValueError, match=f"{least} … {most}; those of the environment are 0 … 3"
        ):
            call()


def test_after_the_start_actions_of_the_wrong_shape_are_an_error_naming_the_program() -> None:
    k = acting("tests.own_losses:wrong_shape")
    buffers = fill_arrays([k])
    buffers["explore"][:] = 0.0, 0.0, 1.0, 16 * 5
    call = cpu.bind(k, "torch", buffers)
    for _ in range(5):
        call()
    with pytest.raises(ValueError, match=r"own_losses:wrong_shape returned \(16, 4\)"):
        call()


def test_continuous_actions_without_a_program_are_squashed_with_noise() -> None:
    k = kernel("inference.mine", envs=64, obs=3, act=2, policy=(3, 8, 2))
    buffers = fill_arrays([k])
    buffers["act.low"][:], buffers["act.high"][:] = (-1.0, 0.0), (1.0, 4.0)
    buffers["env.obs"][:] = np.random.default_rng(0).normal(size=buffers["env.obs"].shape)
    buffers["explore"][:] = 0.0
    cpu.bind(k, "torch", buffers)()
    greedy = cpu.act(
        k, buffers["policy.policy"], buffers["env.obs"], buffers["act.low"], buffers["act.high"]
    )
    np.testing.assert_allclose(buffers["act.action"], greedy, rtol=1e-5, atol=1e-6)
