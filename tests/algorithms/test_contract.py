"""Every algorithm of the table, and the examples, keep the contract of algorithms."""

from __future__ import annotations

import pytest

import pearl
from pearl.algorithms import ALGORITHMS
from pearl.errors import SpecError
from pearl.testing import AlgorithmContract
from tests import wide_head

EXAMPLES = ("examples.own_algorithm", "examples.reinforce", "examples.vtrace")

for name in (*ALGORITHMS, *EXAMPLES):
    title = "Test" + "".join(map(str.capitalize, name.replace(".", "_").split("_")))
    globals()[title] = type(title, (AlgorithmContract,), {"name": name})


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
