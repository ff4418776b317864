"""Few choices of replicas instead of all: the bound is one, and so is the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pearl
from pearl.planner.planner import build_problem
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.planning.replicas import ReplicaSplit
from pearl.solvers.methods import milp, split_selection
from pearl.spec.reading import load
from pearl.time_limit import OutOfTimeError
from pearl_devices import Link
from pearl_devices.hosts import find_equivalents, join_hosts
from pearl_estimators import Estimate


def on_hosts(hosts: int, step_s: float, gpus: int = 1, copies: int = 2):
    """DQN on so many computers with GPUs and a CPU of one lane, where alone the environments are;
    each of their steps takes `step_s`."""
    limits = {"replicas": dict.fromkeys(("step", "act"), copies), "policy_lag": 1}
    given = {"platform": "cpu_gpu", **{f"limits.{k}": v for k, v in limits.items()}}
    if copies > 2:
        given["algorithm.num_envs"] = 8 * copies
    system = load("dqn_cartpole", set=given)
    (cpu, gpu), (link,) = system.platform.devices, system.platform.links
    all_gpus = [replace(gpu, name=f"{gpu.name}{i}") for i in range(gpus)]
    machine = replace(
        system.platform,
        devices=(replace(cpu, max_lanes=1), *all_gpus),
        links=tuple(replace(link, b=g.name) for g in all_gpus),
    )
    names = [f"n{i}" for i in range(hosts)]
    links = [Link(names[0], n, 50e-6, 1.25e9, 20e-6) for n in names[1:]]
    platform = join_hosts("several", dict.fromkeys(names, machine), links)
    whole = build_problem(replace(system, platform=platform))
    graph, costs = whole.graph, whole.costs
    envs, modes = graph.task("step").environments, []
    for m in costs.modes:
        if "step" not in m.tasks:
            modes.append(m)
        elif not m.fused and m.device.endswith("/cpu"):
            modes.append(replace(m, estimate=Estimate(step_s * (m.share or envs))))
    return graph, CostTable(platform, tuple(modes)), system.limits


@pytest.mark.parametrize("step_s", [1e-6, 1e-3])
def test_the_bound_and_the_plan_of_few_are_beside_those_of_all(step_s, monkeypatch):
    graph, costs, limits = on_hosts(2, step_s)
    whole = pearl.solve(graph, costs, limits=limits, time_limit_s=600)
    assert split_selection.select_splits(Problem(graph, costs, limits)) is None
    monkeypatch.setattr(split_selection, "MOST", 0)
    few = split_selection.select_splits(Problem(graph, costs, limits))
    assert ReplicaSplit() in few.splits
    assert len(few.splits) <= 3
    assert 0 < few.bound <= whole.period_s * (1 + 1e-9)
    plan = pearl.solve(graph, costs, limits=limits, time_limit_s=600)
    assert plan.period_s >= whole.bound_s * (1 - 1e-9)
    assert plan.bound_s <= whole.period_s * (1 + 1e-9)
    assert plan.period_s <= 1.01 * whole.period_s
    if step_s > 1e-5:
        assert {task.device.split("/")[0] for task in plan.tasks} == {"n0", "n1"}


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("hosts", "step_s"), [(4, 1e-3), (6, 1e-2)])
def test_alike_hosts_have_a_copy_each_before_any_period_form_is_built(hosts, step_s, monkeypatch):
    """Bounds of all choices and a greedy assignment do it, however many devices there are."""
    graph, costs, limits = on_hosts(hosts, step_s, 3, hosts)

    def form(*given):
        raise OutOfTimeError

    monkeypatch.setattr(milp, "PeriodForm", form)
    monkeypatch.setattr(milp, "overlaps", lambda *given: False)
    plan = pearl.solve(graph, costs, limits=limits, time_limit_s=40)
    assert plan.gap < 0.01
    assert {task.device.split("/")[0] for task in plan.tasks} == {f"n{i}" for i in range(hosts)}


def test_devices_that_differ_in_name_and_host_alone_are_alike():
    machine = load("dqn_cartpole", set={"platform": "cpu_gpu"}).platform
    platform = join_hosts("two", {"a": machine, "b": machine}, [Link("a", "b", 1e-5, 1e9)])
    found = find_equivalents(platform.devices)
    assert found == {f"{host}/{kind}": f"a/{kind}" for host in "ab" for kind in ("cpu", "gpu")}
    assert find_equivalents(platform.devices, ["b/cpu"])["b/cpu"] == "b/cpu"
    real = [replace(d, real=True) for d in platform.devices]
    assert set(find_equivalents(real).values()) == {d.name for d in platform.devices}
    other = [*platform.devices[:2], replace(platform.devices[2], overhead_s=1.0)]
    assert find_equivalents(other)["b/cpu"] == "b/cpu"
