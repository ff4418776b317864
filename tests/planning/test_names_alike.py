"""Things that a plan tells apart by name: parallel edges, modes, links and lanes."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from pearl import load, solve
from pearl.algorithms import algorithm
from pearl.errors import InfeasibleError, SpecError
from pearl.explanation import explain
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.verification import check_plan
from pearl_devices import Device, Link, Platform
from tests.graphs import act_and_learn, dqn, dqn_costs, share_modes

APART = star(devices("a", "b"))
APART_COSTS = CostTable(APART, (mode("x", "a", 1.0), mode("y", "b", 1.0)))
SELF = (Edge("x", "x", tokens_seq=1), Edge("y", "y", tokens_seq=1))
BACK = Edge("y", "x", tokens_seq=1)


def two(*between: Edge) -> TaskGraph:
    return TaskGraph("two", loop("x", "y").tasks, (*between, BACK, *SELF))


def same(plan: Plan, graph: TaskGraph, costs: CostTable) -> None:
    """The plan passes its check, also when it has been a file, and is explained."""
    assert plan.problem is not None
    problem = Problem(graph, costs, plan.problem.limits)
    check_plan(plan, problem)
    check_plan(load_plan(json.loads(json.dumps(plan.to_json()))), problem)
    assert explain(plan, time_limit_s=0.2).value == plan.value


@pytest.mark.parametrize("method", ["milp", "pearl.testing.exhaustive"])
@pytest.mark.parametrize(
    ("limits", "slack", "period_s"),
    [
        ((None, "prefetch"), (0, 0), 2.0),  # the edge without slack holds y to the x before it
        (("prefetch", None), (0, 0), 2.0),
        (("prefetch", "prefetch"), (1, 1), 1.0),
        (("prefetch", "policy_lag"), (0, 0), 2.0),  # policy_lag is 0
        (("prefetch", "insertion_lag"), (1, 1), 1.0),
    ],
)
def test_each_of_two_parallel_edges_has_its_own_slack(method, limits, slack, period_s):
    edges = (Edge("x", "y", limit=limits[0], bytes=1.0), Edge("x", "y", limit=limits[1]))
    graph, allowed = two(*edges), Limits(prefetch=3, insertion_lag=1)
    plan = solve(graph, APART_COSTS, method=method, limits=allowed)
    assert plan.period_s == pytest.approx(period_s)
    assert tuple(e.slack for e in plan.edges[:2]) == slack
    same(plan, graph, APART_COSTS)


def test_an_edge_beside_a_stricter_one_changes_no_plan():
    """Oracle: an edge with as many tokens or more, and as many bytes or fewer, asks for nothing
    that its neighbour does not ask for."""
    compared = 0
    for seed in range(40):
        graph, costs = random_problem(seed, most_tasks=4, most_devices=2)
        graph = replace(graph, edges=tuple(replace(e, limit=None) for e in graph.edges))
        r = random.Random(seed)
        e = r.choice(graph.edges)
        more = r.choice([0, 1]) * max(e.production, e.consumption)
        size = e.bytes * r.choice([0, 0.5, 1])
        beside = replace(e, tokens_seq=e.tokens_seq + more, bytes=size)
        beside = replace(beside, limit=r.choice([None, "prefetch"]))
        edges = list(graph.edges)
        edges.insert(r.randrange(len(edges) + 1), beside)
        doubled = replace(graph, edges=tuple(edges))
        objective = r.choice(["throughput", "power_efficiency", "makespan"])
        method = "pearl.testing.exhaustive" if objective == "makespan" else "milp"
        try:
            one = solve(graph, costs, objective=objective, method=method)
        except (InfeasibleError, SpecError):
            continue
        limits = Limits(prefetch=2)
        both = solve(doubled, costs, objective=objective, method=method, limits=limits)
        check_plan(both, Problem(doubled, costs, limits))
        if one.status == both.status == "optimal":
            compared += 1
            assert both.value == pytest.approx(one.value, rel=1e-6), seed
    assert compared > 25


def test_parallel_edges_of_tasks_that_are_split_keep_their_slack_apart():
    graph = act_and_learn()
    graph = replace(graph, edges=(Edge("act", "learn", limit="prefetch"), *graph.edges))
    platform = star(devices("a", "b", "c"))
    modes = (
        *share_modes("act", "a", {8: 8.0, 4: 4.0}, 8),
        *share_modes("act", "b", {8: 8.0, 4: 4.0}, 8),
        mode("learn", "c", 1.0),
    )
    costs = CostTable(platform, modes)
    plan = solve(graph, costs, limits=Limits(prefetch=1, replicas={"act": 2}))
    assert plan.period_s == pytest.approx(5.0)
    assert {e.slack for e in plan.edges} == {0}
    same(plan, graph, costs)


def with_sizes(graph):
    """The tasks with the kernels of a shipped spec, whose arrays have shapes."""
    sized = {t.name: t.kernel for t in algorithm("dqn").graph(load("dqn_cartpole")).tasks}
    return replace(graph, tasks=tuple(replace(t, kernel=sized[t.name]) for t in graph.tasks))


def test_a_lane_waits_for_the_strictest_of_parallel_edges():
    graph = with_sizes(dqn(1))
    beside = (
        Edge("sample", "learn", tokens_seq=3, bytes=1.0),
        Edge("sync", "act", 2, 2, tokens_seq=6, bytes=1.0),
        Edge("step", "act", tokens_seq=4),
    )
    costs = dqn_costs(star(devices("a", "b")), {"a": 1.0, "b": 1.0})
    limits = Limits(policy_lag=1, prefetch=1, priority_staleness=1, pin={"learn": "b"})
    plan = solve(graph, costs, limits=limits)
    assert len({t.lane for t in plan.tasks}) > 1
    assert any(e.slack for e in plan.edges)
    channel = plan.edges[0]
    for edges in ((*graph.edges, *beside), (*beside, *graph.edges)):
        doubled = replace(graph, edges=edges)
        given = iter(plan.edges)
        channels = tuple(
            replace(
                channel,
                src=e.src,
                dst=e.dst,
                production=e.production,
                consumption=e.consumption,
                tokens_seq=e.tokens_seq,
                tokens=e.tokens,
                capacity=99,
                slack=0,
            )
            if e in beside
            else next(given)
            for e in edges
        )
        once, twice = (
            ExecutionSchedule(plan, graph),
            ExecutionSchedule(replace(plan, edges=channels), doubled),
        )
        assert twice.slots == once.slots
        assert twice.lanes == once.lanes


def test_an_edge_that_the_graph_has_once_is_in_the_plan_once():
    graph = two(Edge("x", "y", bytes=1.0))
    plan = solve(graph, APART_COSTS)
    more = replace(plan, edges=(*plan.edges, plan.edges[0]))
    with pytest.raises(SpecError, match="edge x → y is 2 times in the plan, 1 times in the graph"):
        check_plan(more, Problem(graph, APART_COSTS))
    unknown = replace(plan, edges=(*plan.edges, replace(plan.edges[0], dst="z")))
    with pytest.raises(SpecError, match="edge x → z is 1 times in the plan, 0 times in the graph"):
        check_plan(unknown, Problem(graph, APART_COSTS))


def test_two_modes_of_one_key_are_refused():
    modes = (mode("x", "a", 1.0), mode("x", "a", 2.0))
    said = r"cost table: x: two modes of variant 'v', width 1 on a; .*another variant"
    with pytest.raises(SpecError, match=said):
        CostTable(APART, modes)
    CostTable(APART, (modes[0], mode("x", "a", 2.0, variant="w"), mode("x", "b", 2.0)))
    CostTable(APART, share_modes("x", "a", {8: 2.0, 4: 1.0}, 8))
    with pytest.raises(SpecError, match="x: two modes of variant 'v'"):
        CostTable(APART, share_modes("x", "a", {4: 2.0}, 8) * 2)


def test_fused_modes_of_the_same_tasks_name_them_in_one_order():
    modes = (mode(("x", "y"), "a", 1.0), mode(("y", "x"), "b", 1.0))
    with pytest.raises(SpecError, match="fused modes of x, y and of y, x: the same tasks"):
        CostTable(APART, modes)


def some(*names: str, host: str, links: tuple[tuple[str, str], ...]) -> Platform:
    found = tuple(Device(n, "null") for n in names)
    return Platform("p", found, tuple(Link(a, b, 0.0, 1.0) for a, b in links), host)


def test_links_named_alike_are_refused():
    """They would take turns on one ring: 2 s a period where each could send 1 byte a second."""
    names, star_links = ("h", "a", "b-c", "a-b", "c"), (("h", "a"), ("h", "b-c"))
    links = (*star_links, ("h", "a-b"), ("h", "c"), ("a", "b-c"), ("a-b", "c"))
    with pytest.raises(ValueError, match=r"'a' and 'b-c' and that of 'a-b' and 'c' are both call"):
        some(*names, host="h", links=links)
    some(*names, host="h", links=links[:-1])


def test_a_link_named_like_a_lane_is_refused():
    links = (("a-b", "a"), ("a-b", "b.0"), ("a", "b.0"))
    with pytest.raises(ValueError, match=r"called 'a-b.0', like a lane of device 'a-b'"):
        some("a-b", "a", "b.0", host="a-b", links=links)
    some("a-b", "a", "b.0", host="a-b", links=links[:-1])
    some("a-b", "a", "b.x", host="a-b", links=(("a-b", "a"), ("a-b", "b.x"), ("a", "b.x")))
    some("a-c", "a", "b.0", host="a", links=(("a", "a-c"), ("a", "b.0")))
