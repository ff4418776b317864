"""Training follows the plan, is reproducible, resumes exactly, and refuses what it cannot do."""

from dataclasses import replace

import numpy as np
import pytest

import pearl
from pearl.errors import SpecError

SMALL = {"algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 4, "hidden": [16, 16],
                       "batch_size": 16,
                       "replay": {"kind": "prioritised", "capacity": 1000, "fanout": 8},
                       "n_step": 2, "learning_starts": 100},
         "platform": "host",
         "train": {"steps": 800, "evaluate_every": 0, "final_episodes": 2,
                   "checkpoint_every": 400}}  # fmt: skip
DDPG = {"algorithm": {"name": "ddpg", "env": "Pendulum-v1", "num_envs": 2, "hidden": [16, 16],
                      "batch_size": 16, "replay": {"kind": "uniform", "capacity": 1000},
                      "replay_ratio": "1/4", "learning_starts": 100},
        "platform": "host",
        "train": {"steps": 400, "evaluate_every": 0, "final_episodes": 1}}  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(SMALL))


def arrays(trainer):
    passing = ("batch.", "step.", "loop.", "version.")
    return {n: a for n, a in trainer.session.arrays.items() if not n.startswith(passing)}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_run_of_another_spec_or_begun_anew_is_refused_in_the_folder_of_one(plan, tmp_path):
    pearl.compile(SMALL, plan=plan).train(out=tmp_path)
    other = pearl.load(SMALL, set={"algorithm.discount": 0.9})
    with pytest.raises(SpecError, match=r"algorithm.discount was 0.99 and is now 0.9"):
        pearl.compile(other, plan=plan).train(out=tmp_path, resume=True)
    with pytest.raises(SpecError, match="already holds a run"):
        pearl.compile(SMALL, plan=plan).train(out=tmp_path)


def test_the_replay_ratio_is_exact():
    run = pearl.compile(DDPG).train()
    warm = -(-100 // 4) * 4  # an iteration is two vector steps of two environments
    assert run.env_steps == 400
    assert run.updates * 4 == run.env_steps - warm


def test_saved_and_loaded_it_acts_the_same(plan, tmp_path):
    trainer = pearl.compile(SMALL, plan=plan)
    assert trainer.train(steps=401).env_steps == 404  # rounded up to a whole iteration
    trainer.save(tmp_path / "file")
    loaded = pearl.Trainer.load(tmp_path / "file")
    obs = np.random.default_rng(0).normal(size=(32, 4))
    np.testing.assert_array_equal(trainer.policy.act(obs), loaded.policy.act(obs))
    assert trainer.evaluate(2, seed=1) == loaded.evaluate(2, seed=1)
    assert loaded.system == trainer.system
    assert trainer.policy.act(np.zeros(4)).shape == ()
    with pytest.raises(ValueError, match=r"shape \(3,\); the policy takes \(B, 4\)"):
        trainer.policy.act(np.zeros(3))


def test_an_emulated_run_computes_what_the_host_would_and_keeps_the_models_time(plan):
    system = pearl.load(SMALL, set={"platform": "cpu_gpu_fpga", "limits.pin": {"learn": "fpga"}})
    emulated = pearl.compile(system, emulate=True)
    run = emulated.train()
    assert run.simulated
    assert run.env_steps_per_cpu_s is None
    assert run.env_steps_per_s == pytest.approx(emulated.plan.rates["env_steps_per_s"], rel=0.05)
    host = pearl.compile(SMALL, plan=plan)
    host.train()
    assert_equal(arrays(host), arrays(emulated))


def test_a_plan_of_another_problem_is_refused(plan):
    with pytest.raises(SpecError, match="plan"):
        pearl.compile(DDPG, plan=plan)
    for factor, why in ((2.0, "value is .*period_s"), (0.5, "short at a period")):
        with pytest.raises(SpecError, match=why):
            pearl.compile(SMALL, plan=replace(plan, period_s=plan.period_s * factor))


def test_steps_are_counted_from_one(plan):
    with pytest.raises(SpecError, match="steps is 0; a whole number from 1 on is needed"):
        pearl.compile(SMALL, plan=plan).train(steps=0)
    assert pearl.compile(SMALL, plan=plan).train(steps=1).env_steps == 4
