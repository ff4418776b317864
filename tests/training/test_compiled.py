"""A system is compiled once: one graph, one unfolding, one check; and never changes."""

from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.planner.stated_plan import check_stated_plan
from pearl.planning import plan_validation, replicas
from pearl.training import compiled
from pearl.training.compiled import CompiledPlan
from pearl_devices import torch_threads
from tests.examples import placement
from tests.lanes import planned, replay_spec, told

SPLIT = {"max_lanes": 4, "replicas": {"step": 2}}


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
    check = counted(found, "check_stated_plan", check_stated_plan)
    monkeypatch.setattr(compiled, "check_stated_plan", check)
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


def compiled_plan(*tasks, lanes=2, hosting="threads", **other):
    """What the checks of a compiled plan read."""
    plan = SimpleNamespace(tasks=tasks, simulated=False)
    system = SimpleNamespace(train=SimpleNamespace(lanes=None), limits=SimpleNamespace(any_order=1))
    protocol = SimpleNamespace(lanes=[0] * lanes)
    fields = {"plan": plan, "system": system, "protocol": protocol, "emulate": False}
    return SimpleNamespace(**{**fields, "remote_groups": (), "hosting": hosting, **other})


def test_threads_of_torch_in_one_lane_and_torch_in_another_are_refused():
    wide = placement("learn", "cpu", "a", 1.0, variant="torch-2")
    assert torch_threads.threads_of("torch-2") == 2
    other = placement("act", "cpu", "b", 1.0, variant="torch")
    with pytest.raises(pearl.SpecError) as caught:
        CompiledPlan.check_torch_threads(compiled_plan(other, wide))
    assert caught.value.problems == (
        "train.lanes: threads of one process, and torch-2 of learn would set how many threads "
        "torch has in act too; set it to processes, or leave torch-2 out of limits.variants",
    )
    for fine in (
        compiled_plan(other, wide, hosting="processes"),
        compiled_plan(replace(other, lane="a"), wide),
        compiled_plan(replace(other, variant="native"), wide),
        compiled_plan(replace(other, width_unit="sm"), wide),
        compiled_plan(other, replace(wide, variant="torch")),
    ):
        CompiledPlan.check_torch_threads(fine)


def devices(*kinds):
    return [
        SimpleNamespace(name=f"{kind}{n}", kind=kind, real=kind == "cpu")
        for n, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("name", ["host", "box"])
def test_a_device_that_is_not_here_is_refused_with_the_reason(name, monkeypatch):
    asked = []

    def memory(number):
        asked.append(number)
        if number == 1:
            raise compiled.UnsupportedError("it is broken")

    kinds = {"gpu": SimpleNamespace(memory=memory), "npu": SimpleNamespace()}
    monkeypatch.setattr(compiled, "backend", kinds.__getitem__)
    found = devices("cpu", "gpu", "gpu", "npu", "gpu")
    platform = SimpleNamespace(
        name=name, devices=found, device=lambda name: next(d for d in found if d.name == name)
    )
    made = compiled_plan(*(placement("t", d, "l", 1.0) for d in ("cpu0", "gpu2", "npu3")))
    made.system.platform = platform
    with pytest.raises(pearl.SpecError) as caught:
        compiled.require_devices(made)
    if name == "box":
        assert caught.value.problems == (
            "the plan uses gpu2, npu3 of box, which this machine lacks; emulate the plan "
            "(--emulate, in Python emulate=True), or plan for platform host",
        )
    else:
        assert caught.value.problems == (
            "device gpu2: it is broken",
            "device npu3: nothing drives one of kind npu",
            "the plan uses gpu2, npu3 of host, which this version plans for but cannot drive; "
            "emulate the plan (--emulate, in Python emulate=True), or keep the tasks off it "
            "(limits.devices)",
        )
        assert asked == [1]
    made.plan.tasks = [placement("t", "cpu0", "l", 1.0)]
    compiled.require_devices(made)
