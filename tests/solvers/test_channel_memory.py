"""Data in flight is memory: plans of two stages by hand, and of tiny graphs against enumeration."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from dataclasses import replace

import pytest

import pearl
from pearl.errors import InfeasibleError
from pearl.explanation.resolve import Resolver
from pearl.graph.cycle_ratio import howard
from pearl.graph.period import expand, token_free_cycle
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.capacities import channel_bytes
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph, channel_arcs
from pearl.testing.graphs import devices, mode, star
from pearl.verification import check_plan
from pearl_devices import Kernel

GB = 1e9


def two_stages(room_gb: float, micro_batches: int = 8) -> tuple[TaskGraph, CostTable]:
    """Forward passes of 1 s and backward passes of 2 s on two devices, activations of 1 GB."""
    platform = pearl.Platform(
        "two",
        [pearl.Device(d, memory_bytes=room_gb * GB) for d in "ab"],
        [pearl.Link("a", "b", latency_s=0, bytes_per_s=1e15)],
    )
    passes = {"f0": 1.0, "f1": 1.0, "b1": 2.0, "b0": 2.0}
    pairs = [("f0", "f1"), ("f1", "b1"), ("b1", "b0"), ("f0", "b0")]
    graph = pearl.TaskGraph(
        "pipeline",
        [pearl.Task(t, group=f"stage {t[1]}") for t in passes],
        [
            *(pearl.Edge(s, d, bytes=GB) for s, d in pairs),
            pearl.Edge("b0", "f0", tokens_seq=micro_batches),
        ],
    )
    return graph, CostTable.from_seconds(
        platform, {t: dict.fromkeys("ab", s) for t, s in passes.items()}
    )


def held_bytes(plan: Plan, graph: TaskGraph) -> dict[str, float]:
    """The bytes on each device: scratch, and the channels into its tasks."""
    device = {t.task: t.device for t in plan.tasks}
    held = dict.fromkeys(device.values(), 0.0)
    for t in graph.tasks:
        held[device[t.name]] += t.kernel.resident_bytes
    for e in plan.edges:
        held[device[e.dst]] += (e.capacity or 0) / e.production * e.bytes
    return held


@pytest.mark.parametrize(
    ("room_gb", "period_s"),
    [
        (30, 3.0),  # a device works 3 s for each micro-batch
        (5, 3.0),  # 3 activations wait for b0, and 2 gradients
        (3, 4.0),  # with room for 1 gradient, b1 begins when b0 is done
        (2, 6.0),  # each channel holds 1: no micro-batch overlaps the next
    ],
)
def test_two_stages_keep_what_their_devices_hold(room_gb: float, period_s: float) -> None:
    graph, costs = two_stages(room_gb)
    plan = pearl.solve(graph, costs, workers=1)
    assert plan.period_s == pytest.approx(period_s, rel=1e-4)
    assert max(held_bytes(plan, graph).values()) <= room_gb * GB
    assert plan.bound_s <= 3.0 * (1 + 1e-6)
    assert (plan.status == "optimal") == (period_s == 3.0)
    again = load_plan(json.loads(json.dumps(plan.to_json())))
    check_plan(again, Problem(graph, costs))
    assert [e.capacity for e in again.edges] == [e.capacity for e in plan.edges]


@pytest.mark.parametrize(("room_gb", "period_s"), [(5, 3.0), (3, 4.0)])
def test_a_robust_plan_and_its_rivals_keep_what_their_devices_hold(
    room_gb: float, period_s: float
) -> None:
    graph, costs = two_stages(room_gb)
    rough = replace(
        costs,
        modes=tuple(
            mode(m.tasks[0], m.device, m.estimate.latency_s, band=0.05) for m in costs.modes
        ),
    )
    plan = pearl.solve(graph, rough, objective="robust", workers=1)
    assert plan.period_s == pytest.approx(period_s, rel=1e-4)
    assert max(held_bytes(plan, graph).values()) <= room_gb * GB
    assert plan.regret is not None
    check_plan(plan, Problem(graph, rough))
    resolver = Resolver(plan, plan.problem or Problem(graph, rough), time.monotonic() + 20)
    assert resolver.cost_of(plan) == pytest.approx(1 + plan.regret.mean, rel=1e-4)
    answer = resolver.solve()
    assert answer is not None
    assert answer.plan is not None
    assert answer.plan.period_s >= period_s * (1 - 1e-4)
    assert max(held_bytes(answer.plan, graph).values()) <= room_gb * GB


def test_an_iteration_whose_channels_are_cut_takes_longer() -> None:
    """Five messages of 1 GB for a consumer of 1 s each; the producer takes no room."""
    tasks = (Task("a", Kernel("a")), Task("b", Kernel("b")), Task("end", Kernel("end")))
    edges = (Edge("a", "b", bytes=GB), Edge("b", "end", 1, 5))
    graph = TaskGraph("g", tasks, edges)
    modes = (mode("a", "x", 0.5), mode("b", "y", 1.0), mode("end", "x", 0.1))
    free = CostTable(star(devices("x", "y", lanes=1), 0.0, 1e15), modes)
    tight = CostTable(star(devices("x", "y", lanes=1, memory_bytes=2 * GB), 0.0, 1e15), modes)
    long, short = (pearl.solve(graph, c, objective="makespan", workers=1) for c in (tight, free))
    assert held_bytes(short, graph)["y"] == 5 * GB
    assert held_bytes(long, graph)["y"] <= 2 * GB
    assert long.value == pytest.approx(short.value, rel=1e-6)  # b never waits for a


def test_what_cannot_fit_is_refused_with_the_bytes_of_its_channels() -> None:
    with pytest.raises(InfeasibleError, match="channels into them hold 2e\\+09 bytes") as refused:
        pearl.solve(*two_stages(1.5), workers=1)
    assert refused.value.conflict


def test_the_units_of_a_lane_hold_its_channels() -> None:
    """A pool of 4 units: the activation of 2 bytes and the modes of 3 bytes need 8 on one lane."""

    def planned(room: float) -> Plan:
        pool = pearl.Device("pool", width=4, width_unit="GPUs", max_lanes=2, unit_memory_bytes=room)
        graph = TaskGraph(
            "g",
            (Task("a", Kernel("a")), Task("b", Kernel("b"))),
            (Edge("a", "b", bytes=2.0), Edge("b", "a", tokens_seq=1)),
        )
        modes = [
            pearl.Mode.of(t, "pool", 4 / w, width=w, unit_bytes=3.0) for t in "ab" for w in (2, 4)
        ]
        return pearl.solve(graph, pearl.CostTable(pearl.Platform("p", [pool]), modes), workers=1)

    assert len({t.lane for t in planned(8.0).tasks}) == 1
    apart = planned(7.0)
    assert len({t.lane for t in apart.tasks}) == 2
    assert apart.period_s == pytest.approx(4.0)
    with pytest.raises(InfeasibleError, match="channels into them hold 2 bytes"):
        planned(4.5)


def tiny(seed: int) -> tuple[TaskGraph, CostTable, pearl.Limits]:
    r = random.Random(seed)
    n = r.choice([2, 3, 3])
    names = [f"t{i}" for i in range(n)]
    kernels = [Kernel(t, resident_bytes=r.choice([0, 1.0])) for t in names]
    edges = [Edge(names[i], names[i + 1], bytes=r.choice([0, 1.0, 2.0])) for i in range(n - 1)]
    lag = "policy_lag" if r.random() < 0.4 else None
    back = Edge(
        names[-1], names[0], tokens_seq=r.randint(1, 3), bytes=r.choice([0, 1.0]), limit=lag
    )
    chord = [Edge(names[0], names[-1], bytes=1.0)] * r.randint(0, 1)
    graph = TaskGraph("tiny", tuple(map(Task, names, kernels)), (*edges, back, *chord))
    found = devices("a", "b", lanes=1, memory_bytes=r.choice([3.0, 4.0, 5.0, 7.0, 9.0]))
    modes = tuple(mode(t, d, r.choice([1.0, 2.0, 3.0])) for t in names for d in "ab")
    limits = pearl.Limits(policy_lag=r.choice([0, 1]))
    return graph, CostTable(star(found, 1e-9, 1e12), modes), limits


def least_period(graph: TaskGraph, costs: CostTable, limits: pearl.Limits) -> float:
    """The least period over all slack, devices, orders and capacities within memory."""
    names, best = [t.name for t in graph.tasks], math.inf
    for lag in range(limits.policy_lag + 1):
        edges = tuple(replace(e, slack=lag) if e.limit else e for e in graph.edges)
        x = expand(replace(graph, edges=edges))
        channels = {n: e for n, e in enumerate(edges) if e.is_channel}
        for place in itertools.product("ab", repeat=len(names)):
            of = dict(zip(names, place, strict=True))
            modes = [
                next(m for m in costs.modes if m.tasks == (t,) and m.device == of[t]) for t in names
            ]
            a = Assignment(x, costs, tuple(modes), (0,) * len(names))
            room = {
                d.name: d.memory_bytes
                - sum(t.kernel.resident_bytes for t in graph.tasks if of[t.name] == d.name)
                for d in costs.platform.devices
            }
            every = itertools.product(
                *(range(e.least_capacity, e.least_capacity + 4) for e in channels.values())
            )
            fits = [
                held
                for held in every
                if all(
                    size
                    >= sum(
                        channel_bytes(a, e, k)
                        for e, k in zip(channels.values(), held, strict=True)
                        if of[e.dst] == d
                    )
                    for d, size in room.items()
                )
            ]
            most = [k for k in fits if not any(o != k and all(map(int.__ge__, o, k)) for o in fits)]
            timed = build_timed_graph(a)
            n = len(timed.names)
            rings = [
                [
                    (lane, tuple(zip(order, (0, *ahead), strict=True)))
                    for order in itertools.permutations(nodes)
                    if order[0] == min(nodes)
                    for ahead in itertools.product(range(-2, 3), repeat=len(nodes) - 1)
                ]
                for lane, nodes in timed.lanes.items()
            ]
            for orders, held in itertools.product(itertools.product(*rings), most):
                arcs = [*timed.arcs, *timed.ring(dict(orders))]
                for e, k in zip(channels.values(), held, strict=True):
                    arcs += [(s, d, timed.latency_s[s], m) for s, d, m in channel_arcs(x, e, k)]
                if not token_free_cycle(n, arcs):
                    best = min(best, howard(n, arcs)[0])
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_bound_is_above_the_best_plan_within_memory_and_no_plan_below_it(seed: int) -> None:
    graph, costs, limits = tiny(seed)
    least = least_period(graph, costs, limits)
    try:
        plan = pearl.solve(graph, costs, limits=limits, workers=1)
    except InfeasibleError:
        assert least == math.inf
        return
    check_plan(plan, Problem(graph, costs, limits))
    assert plan.bound_s * (1 - 1e-6) <= least <= plan.period_s * (1 + 1e-6)
    for device, size in held_bytes(plan, graph).items():
        assert size <= costs.platform.device(device).memory_bytes * (1 + 1e-9)
    if plan.status == "optimal":
        assert plan.period_s == pytest.approx(least, rel=1e-6)
