"""Plans on platforms of two hosts, against enumeration."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.methods import enumeration
from pearl.solvers.model.search_space import search_spaces
from pearl.testing.graphs import devices, loop, mode, random_problem
from pearl_devices import Kernel, Link, Platform
from pearl_devices.hosts import join_hosts
from tests.graphs import least_by_enumeration, least_by_program


def on_two_hosts(seed: int) -> tuple[TaskGraph, CostTable]:
    """A random problem whose first device is one host and whose others are another."""
    graph, costs = random_problem(seed, most_tasks=5)
    r, (home, *others) = random.Random(seed), costs.platform.devices
    cables = tuple(
        Link(others[0].name, d.name, 1e-7, 1e10, 2e-7, 1e-10, paid_by=r.choice(["link", "lane"]))
        for d in others[1:]
    )
    machines = {"a": Platform("a", (home,))}
    network = []
    if others:
        machines["b"] = Platform("b", tuple(others), cables)
        network = [Link("a", "b", 1e-6, r.choice([1e9, 1e10]), 5e-7, 1e-10)]
    platform = join_hosts("two", machines, network)
    name = {d.name.partition("/")[2]: d.name for d in platform.devices}
    pairs = {
        ((a, (name[x], *k)), (b, (name[y], *m))): seconds
        for ((a, (x, *k)), (b, (y, *m))), seconds in costs.pair_extra_s.items()
    }
    modes = tuple(replace(m, device=name[m.device]) for m in costs.modes)
    return graph, CostTable(platform, modes, pairs)  # type: ignore[arg-type]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", ["throughput", "power_efficiency"])
def test_the_program_agrees_with_enumeration_on_two_hosts(objective: str) -> None:
    compared = 0
    for seed in range(9000, 9060):
        graph, costs = on_two_hosts(seed)
        try:
            choices = search_spaces(Problem(graph, costs))
        except InfeasibleError:
            continue
        if len({d.host for d in costs.platform.devices}) < 2 or enumeration.count(choices) > 2000:
            continue
        compared += 1
        problem = Problem(graph, costs, objective=objective)
        expected = least_by_enumeration(choices, problem)
        assert least_by_program(
            choices, Problem(graph, costs, objective=objective)
        ) == pytest.approx(expected, rel=1e-6)
    assert compared > 25


def test_tasks_spread_over_hosts_only_where_their_messages_cost_less_than_they_gain() -> None:
    machines = {host: Platform(host, devices("cpu", lanes=1)) for host in "ab"}
    platform = join_hosts("two", machines, [Link("a", "b", 1e-3, 1e8, 5e-4)])
    for task_s, hosts in ((1e-5, 1), (1e-2, 2)):
        modes = tuple(mode(t, d.name, task_s) for t in "xy" for d in platform.devices)
        plan = solve(loop("x", "y", size=1e3, tokens=2), CostTable(platform, modes))
        assert len({task.device for task in plan.tasks}) == hosts


def test_a_slower_host_takes_the_smaller_share_of_the_environments() -> None:
    """Copies on unequal hosts: 8 environments of 1 ms at home and of 3 ms elsewhere."""
    machines = {host: Platform(host, devices("cpu", lanes=1)) for host in "ab"}
    platform = join_hosts("two", machines, [Link("a", "b", 1e-5, 1e9, 1e-5)])
    graph = TaskGraph(
        "acting",
        (Task("step", Kernel("env_step"), environments=8), Task("learn", Kernel("learn"))),
        (Edge("step", "learn", bytes=64.0), Edge("learn", "step", tokens_seq=1)),
    )
    step_s = {"a/cpu": 1e-3, "b/cpu": 3e-3}
    modes = [mode("learn", "a/cpu", 1e-5)]
    for device, seconds in step_s.items():
        whole = mode("step", device, 8 * seconds)
        modes += [whole]
        for n in range(1, 8):
            modes.append(replace(mode("step", device, n * seconds), share=n))
    plan = solve(graph, CostTable(platform, tuple(modes)), limits=Limits(replicas={"step": 2}))
    shares = {t.device: t.shares[t.replica] for t in plan.tasks if t.task == "step"}
    assert shares == {"a/cpu": 6, "b/cpu": 2}
    assert plan.period_s == pytest.approx(6e-3, rel=0.05)
