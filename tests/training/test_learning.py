"""Learning, checked by return: one seed of each shipped configuration, whole."""

import pytest

import pearl

pytestmark = pytest.mark.slow


def test_dqn_balances_the_pole():
    run = pearl.compile("dqn_cartpole", seed=1).train()
    assert run.returns["eval_mean"] >= 475


def test_ddpg_swings_the_pendulum_up():
    run = pearl.compile("ddpg_pendulum", seed=1).train()
    assert run.returns["mean_last_20"] >= -200


def test_td3_swings_the_pendulum_up():
    run = pearl.compile("td3_pendulum", seed=1).train()
    assert run.returns["mean_last_20"] >= -200


def test_sac_swings_the_pendulum_up():
    run = pearl.compile("sac_pendulum", seed=1).train()
    assert run.returns["mean_last_20"] >= -200


def test_dqn_learns_on_the_torch_variant_and_the_gymnasium_environment():
    variants = {"update": ["torch"], "inference": ["torch"], "env_step": ["gymnasium"]}
    changes = {"limits.variants": variants, "train.steps": 12_000, "train.evaluate_every": 0}
    trainer = pearl.compile("dqn_cartpole", set=changes)
    assert {trainer.plan.task(t).variant for t in variants} == {"torch", "gymnasium"}
    assert trainer.train().returns["mean_last_20"] >= 100
