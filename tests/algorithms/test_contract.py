"""Every algorithm of the table, and the examples, keep the contract of algorithms."""

from __future__ import annotations

from pearl.algorithms import ALGORITHMS
from pearl.testing import AlgorithmContract


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


def test_every_algorithm_of_the_table_has_its_class() -> None:
    kept = {each.name for each in AlgorithmContract.__subclasses__() if each.__module__ == __name__}
    assert kept >= set(ALGORITHMS)
