"""Every algorithm of the table, and the examples, keep the contract of algorithms."""

from __future__ import annotations

import pytest

import pearl
from pearl.algorithms import ALGORITHMS
from pearl.errors import SpecError
from pearl.testing import AlgorithmContract
from tests import wide_head


class TestDqn(AlgorithmContract):
    name = "dqn"


class TestDdpg(AlgorithmContract):
    name = "ddpg"


class TestTd3(AlgorithmContract):
    name = "td3"


class TestSac(AlgorithmContract):
    name = "sac"


class TestPpo(AlgorithmContract):
    name = "ppo"


class TestA2c(AlgorithmContract):
    name = "a2c"


class TestQLearning(AlgorithmContract):
    name = "q_learning"


class TestSarsa(AlgorithmContract):
    name = "sarsa"


class TestMunchausen(AlgorithmContract):
    name = "examples.own_algorithm"


class TestReinforce(AlgorithmContract):
    name = "examples.reinforce"


class TestVtrace(AlgorithmContract):
    name = "examples.vtrace"


class TestWideHead(AlgorithmContract):
    name = "tests.wide_head"


def test_outputs_that_are_no_values_of_actions_need_a_program_that_chooses() -> None:
    spec = TestWideHead().spec(options={"choosing": False})
    with pytest.raises(SpecError, match=r"'q' has 6 outputs for 2 actions.* \(act\)"):
        pearl.plan(pearl.load(spec))


def test_a_program_that_chooses_another_action_ends_the_run(monkeypatch) -> None:
    monkeypatch.setattr(wide_head, "act", lambda nets, obs, explore, noise: nets.q(obs).argmax(1))
    found = pearl.compile(TestWideHead().spec(), emulate=True).train(steps=200)
    assert found.status == "failed"
    assert "tests.wide_head:act returned actions" in found.message
    assert "those of the environment are 0 … 1" in found.message


def test_every_algorithm_of_the_table_has_its_class() -> None:
    kept = {each.name for each in AlgorithmContract.__subclasses__() if each.__module__ == __name__}
    assert kept >= set(ALGORITHMS)
