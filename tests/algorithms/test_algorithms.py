"""Rates of the graphs that algorithms build; `graphs.json` of the kept texts has their edges."""

from dataclasses import replace
from fractions import Fraction

import pytest

from pearl.algorithms.families.replay import Sizes, build
from pearl.graph.sequential import program_order

LAYERS = (4, 64, 64, 2)
SIZES = Sizes(
    program="CartPole-v1",
    env_args={},
    envs=8,
    obs=4,
    act=0,
    capacity=800,
    prioritised=True,
    fanout=8,
    batch=32,
    n_step=1,
    replay_ratio=Fraction(1),
)


def dqn(**changes):
    sizes = replace(SIZES, **changes)
    return build(
        "dqn",
        sizes,
        networks={"q": LAYERS},
        policy="q",
        losses="pearl.algorithms.dqn:losses",
        extra={"double": 1},
    )


def test_the_sequential_program_acts_then_learns_then_copies():
    assert program_order(dqn(replay_ratio=Fraction(1, 4))) == (
        *("inference", "env_step", "replay_insert"),
        *("replay_sample", "update", "replay_update") * 2,
        "param_sync",
    )


@pytest.mark.parametrize("prioritised", [True, False])
@pytest.mark.parametrize(
    "ratio", [Fraction(1), Fraction(1, 8), Fraction(1, 32), Fraction(3, 16), Fraction(1, 12)]
)
def test_rates_follow_the_replay_ratio_and_the_program_runs(ratio, prioritised):
    graph = dqn(replay_ratio=ratio, prioritised=prioritised)
    assert Fraction(graph.updates, graph.env_steps) == ratio
    order = program_order(graph)
    assert {n: order.count(n) for n in order} == dict(graph.repetition)
    assert graph.env_steps == 8 * graph.repetition["env_step"]


def test_under_uniform_replay_one_firing_does_all_gradient_steps_of_an_iteration():
    graph = dqn(prioritised=False)
    assert set(graph.repetition.values()) == {1}
    assert graph.task("update").kernel.dim("steps") == 8
    with pytest.raises(KeyError, match="no task 'replay_update'"):
        graph.task("replay_update")
