"""A system is compiled once: one graph, one unfolding, one check; and never changes."""

from dataclasses import FrozenInstanceError

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.planning import plan_validation, replicas
from pearl.training import compiled
from tests.lanes import planned, replay_spec, told

SPLIT = {"max_lanes": 4, "replicas": {"env_step": 2}}


def counted(counts, name, function):
    def call(*given, **more):
        counts[name] = counts.get(name, 0) + 1
        return function(*given, **more)

    return call


@pytest.fixture
def counts(monkeypatch):
    """How often the work of compiling is done."""
    found = {}
    module = algorithm("dqn").source
    monkeypatch.setattr(module, "graph", counted(found, "graph", module.graph))
    split_graph = counted(found, "split_graph", replicas.split_graph)
    monkeypatch.setattr(plan_validation, "split_graph", split_graph)
    check_stated_plan = counted(found, "check_stated_plan", plan_validation.check_stated_plan)
    monkeypatch.setattr(compiled, "check_stated_plan", check_stated_plan)
    return found


def test_compile_plans_on_one_graph_and_trains_on_it(counts):
    trainer = pearl.compile("dqn_cartpole", set={"platform": "cpu_gpu"}, emulate=True)
    assert counts == {"graph": 1}
    assert trainer.graph is trainer.plan.problem.graph
    with pytest.raises(FrozenInstanceError):
        trainer.session.compiled.plan = None


@pytest.mark.parametrize("emulate", [False, True])
def test_a_plan_that_is_given_is_unfolded_and_checked_once(emulate, counts):
    system, plan = planned(replay_spec("dqn", SPLIT))
    assert any(t.replicas > 1 for t in plan.tasks)
    counts.clear()
    trainer = pearl.compile(told(system, lanes="threads"), plan=plan, emulate=emulate)
    if emulate:
        assert trainer.train(steps=64).simulated
    assert counts == {"graph": 1, "split_graph": 1, "check_stated_plan": 1}
