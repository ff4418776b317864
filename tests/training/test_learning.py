"""Learning, checked by return: one seed of each shipped configuration with networks, whole."""

import pytest

import pearl
from pearl.spec.checks import read_shipped

BARS = {"dqn_cartpole": ("eval_mean", 475), "ppo_cartpole": ("eval_mean", 475),
        "a2c_cartpole": ("eval_mean", 475), "ddpg_pendulum": ("mean_last_20", -200),
        "td3_pendulum": ("mean_last_20", -200), "sac_pendulum": ("mean_last_20", -200),
        "ppo_pendulum": ("mean_last_20", -300)}  # fmt: skip
"""Configuration → the return that it reaches at least. Those of tables are in `test_tabular`."""

TABULAR = {"q_learning_frozenlake", "sarsa_cliffwalking"}
ELSEWHERE = {"dqn_cartpole_fpga", "dqn_cartpole_gpu", "ppo_halfcheetah"}
"""Those that need a device, or a package, that a test has not: `planner/test_shipped_specs.py`."""


def test_every_configuration_has_a_bar():
    assert BARS.keys() | TABULAR | ELSEWHERE == set(read_shipped())


@pytest.mark.parametrize(
    "name", [pytest.param(b, marks=[pytest.mark.slow] * (b != "ppo_cartpole")) for b in BARS]
)
def test_a_configuration_reaches_its_return(name):
    which, least = BARS[name]
    assert pearl.compile(name, seed=1).train().returns[which] >= least


@pytest.mark.slow
def test_replay_and_learner_on_the_simulated_fpga_learn_in_four_of_five_seeds(tmp_path):
    reached = []
    for seed in range(5):
        trainer = pearl.compile("dqn_cartpole_fpga", emulate=True)
        on = {t.task: t.variant for t in trainer.plan.tasks if t.device == "fpga"}
        assert on.keys() >= {"learn", "store", "sample", "priorities"}
        assert on["learn"].startswith("array")
        run = trainer.train(seed=seed, out=tmp_path / str(seed))
        reached.append(run.returns["last_eval_mean"])
    assert sum(mean >= 475 for mean in reached) >= 4, reached


@pytest.mark.parametrize(
    ("name", "steps", "least"), [("dqn_cartpole", 12_000, 100), ("ppo_cartpole", 30_000, 150)]
)
def test_it_learns_on_the_torch_variant_and_the_gymnasium_environment(name, steps, least):
    variants = {"learn": ["torch"], "act": ["torch"], "step": ["gymnasium"]}
    changes = {"limits.variants": variants, "train.steps": steps, "train.evaluate_every": 0}
    trainer = pearl.compile(name, set=changes)
    assert {trainer.plan.task(t).variant for t in variants} == {"torch", "gymnasium"}
    assert trainer.train().returns["mean_last_20"] >= least
