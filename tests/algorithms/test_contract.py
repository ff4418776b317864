"""Every algorithm of the table, and the examples, keep the contract of algorithms."""

from __future__ import annotations

import pytest

import pearl
from pearl.algorithms import ALGORITHMS
from pearl.errors import SpecError
from pearl.runtime.protocol import single_lane
from pearl.testing import AlgorithmContract
from tests import wide_head
from tests.lanes import differing, recalled

EXAMPLES = ("examples.own_algorithm", "examples.reinforce", "examples.vtrace")

for name in (*ALGORITHMS, *EXAMPLES):
    title = "Test" + "".join(map(str.capitalize, name.replace(".", "_").split("_")))
    globals()[title] = type(title, (AlgorithmContract,), {"name": name})


RANKED = {"replay": {"kind": "prioritised", "capacity": 500, "fanout": 8}}
PENDULUM = {"env": "Pendulum-v1"}


@pytest.mark.parametrize(
    ("name", "fused", "options"),
    [*((name, "learn", RANKED) for name in ("dqn", "ddpg", "td3", "sac")),
     *((name, "learn", {}) for name in ("td3", "sac")), ("dqn", "iteration", RANKED),
     *(("ppo", fused, more) for fused in ("rollout", "iteration") for more in ({}, PENDULUM)),
     *(("a2c", fused, {}) for fused in ("rollout", "iteration"))],
)  # fmt: skip
def test_a_fused_mode_trains_as_the_tasks_one_by_one(name, fused, options):
    small = type("Small", (AlgorithmContract,), {"name": name})()
    system = pearl.load(small.spec(**options))
    together, apart = (pearl.compile(system, emulate=True, seed=3) for _ in range(2))
    (fusion,) = (f for f in together.graph.fusions if f.name == fused)
    recalled(together, single_lane.Job(fusion.tasks, fusion.kernel, "cpu", "native"))
    recalled(apart)
    for trainer in (together, apart):
        assert trainer.train().updates > 10
    assert differing(together, apart) == []


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
