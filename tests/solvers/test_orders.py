"""Lane orders of large timed graphs: policy iteration, modulo schedules and swaps."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pearl.errors import InfeasibleError
from pearl.graph import cycle_ratio
from pearl.graph.cycle_ratio import howard
from pearl.graph.period import token_free_cycle
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, TimedGraph, build_timed_graph
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.orders import modulo, search
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.orders.list_orders import listed_orders, ring_period
from pearl.solvers.orders.rings import Rings, to_arrays, to_orders
from pearl.solvers.orders.search import modulo_orders
from pearl.testing.graphs import devices, mode, random_limited, star, tasks


def timed(graph: TaskGraph, costs: CostTable) -> TimedGraph:
    """The timed graph of the first mode of every task, each on the first lane of its device."""
    space = search_spaces(Problem(graph, costs))[0]
    modes = tuple(options[0] for options in space.options)
    return build_timed_graph(Assignment(space.expansion, costs, modes, (0,) * len(modes)))


def ring(size: int, lanes: int, tokens: int, seed: int) -> TimedGraph:
    """A ring of tasks that stays on a device for some tasks and then goes to another one."""
    dice = random.Random(seed)
    names = [f"t{i}" for i in range(size)]
    marked = {i * size // tokens for i in range(tokens)}
    edges = tuple(
        Edge(names[i], names[(i + 1) % size], tokens_seq=int(i in marked)) for i in range(size)
    )
    platform = star(devices(*(f"d{k}" for k in range(lanes)), lanes=1), latency_s=0.1)
    modes, device = [], 0
    for name in names:
        device = dice.randrange(lanes) if dice.random() < 0.3 else device
        modes.append(mode(name, f"d{device}", dice.uniform(0.5, 1.5)))
    return timed(TaskGraph("ring", tasks(*names), edges), CostTable(platform, tuple(modes)))


def random_arcs(dice: random.Random) -> tuple[int, list[tuple[int, int, float, int]]]:
    n = dice.randint(2, 30)
    arcs = []
    for _ in range(dice.randint(n, 4 * n)):
        s, d = dice.randrange(n), dice.randrange(n)
        tokens = dice.randint(1, 3) if d <= s else dice.randint(0, 2)
        arcs.append((s, d, dice.choice([0.0, dice.random(), 1.0]), tokens))
    return n, arcs


def test_policy_iteration_has_the_same_bits_compiled_and_in_python(monkeypatch: Any) -> None:
    dice = random.Random(1)
    for _ in range(300):
        n, arcs = random_arcs(dice)
        monkeypatch.setattr(cycle_ratio, "COMPILED_ARCS", math.inf)
        monkeypatch.setattr(cycle_ratio, "LOADING_ARCS", math.inf)
        expected = howard(n, arcs)
        monkeypatch.setattr(cycle_ratio, "COMPILED_ARCS", 0)
        assert howard(n, arcs) == expected


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_orders_of_a_ring_are_exact_and_near_the_bound(tokens: int) -> None:
    timing = ring(120, 8, tokens, seed=tokens)
    listed, listed_s = listed_orders(timing, math.inf)
    orders, period_s = modulo_orders(timing, (listed, listed_s))
    assert ring_period(timing, orders) == period_s
    nodes = sorted(i for entries in orders.values() for i, _ in entries)
    assert nodes == list(range(len(timing.names)))
    assert period_s <= 1.45 * timing.order_bound_s
    assert period_s <= listed_s
    if tokens == 4:
        assert period_s < 0.95 * listed_s
    assert modulo_orders(timing, (listed, listed_s)) == (orders, period_s)


@pytest.mark.parametrize(
    ("at", "need", "forward", "backward"),
    [(6, 1, 7, 4), (6, 3, 7, 2), (6, 4, None, None), (7, 3, 7, 7), (2, 3, 2, 2), (3, 2.5, 7, 2.5)],
)
def test_gaps_of_a_lane_are_those_by_hand(
    at: float, need: float, forward: float | None, backward: float | None
) -> None:
    """Of a circle of 10 s, the seconds 0 to 2 and 5 to 7 are taken."""
    lane = np.array([0, 1]), 2, np.array([0.0, 5.0]), np.array([2.0, 2.0]), need, at, 10.0
    none = modulo.NONE
    assert modulo._forward_gap(*lane) == (none if forward is None else forward)
    assert modulo._backward_gap(*lane) == (none if backward is None else backward)


def test_a_modulo_schedule_keeps_every_arc_and_no_two_nodes_of_a_lane_overlap() -> None:
    timing = ring(80, 6, 4, seed=5)
    rings = Rings(to_arrays(timing), np.array([1], np.uint64))
    target = 1.6 * timing.order_bound_s
    start = rings.fit(target, 0.0)
    assert start is not None
    for s, d, seconds, tokens in timing.arcs:
        assert start[d] >= start[s] + seconds - tokens * target - 1e-9 * target
    for members in timing.lanes.values():
        phases = sorted((start[i] % target, timing.occupancy_s[i]) for i in members)
        ends = [p + s for p, s in phases]
        following = [p for p, _ in phases[1:]] + [phases[0][0] + target]
        assert all(e <= f + 1e-9 * target for e, f in zip(ends, following, strict=True))
    assert rings.fit(0.9 * timing.order_bound_s, 0.0) is None


def test_firings_of_one_task_stay_in_their_order() -> None:
    """The n-th entry of a task in a list is its firing n, also if lists run ahead."""
    several = 0
    for seed in range(24):
        graph, costs, _ = random_limited(seed)
        try:
            timing = timed(graph, costs)
        except InfeasibleError:  # a state holds tasks together that have no mode on one device
            continue
        listed = listed_orders(timing, math.inf)
        orders, period_s = modulo_orders(timing, listed, effort=0.1)
        assert ring_period(timing, orders) == pytest.approx(period_s, rel=1e-12)
        assert period_s <= listed[1]
        for entries in orders.values():
            seen: dict[str, int] = {}
            for i, _ahead in entries:
                task, firing = timing.names[i]
                assert firing == seen.get(task, -1) + 1
                seen[task] = firing
                several += firing > 0
    assert several > 20


def test_a_cycle_without_time_or_tokens_is_no_order() -> None:
    """Its ratio is 0, which policy iteration alone would call the best of all."""
    arcs = ((0, 1, 0.0, 0), (1, 0, 1.0, 1))
    nothing = SimpleNamespace(modes=(), lanes=(), expansion=SimpleNamespace(windows=()))
    timing = TimedGraph(
        nothing, (("a", 0), ("b", 0)), (0.0, 1.0), (0.0, 1.0), arcs, {"d.0": (0, 1)}
    )  # type: ignore[arg-type]
    backwards = np.array([1, 0]), np.array([1, 0])  # b → a without a token
    orders = to_orders(timing.names, timing.lanes, backwards)
    assert orders is not None
    assert token_free_cycle(2, [*timing.arcs, *timing.ring(orders)])
    found = search._Search(timing, ({}, math.inf), 1)
    found._offer(backwards)
    assert found.best == ({}, math.inf)


@pytest.mark.parametrize("effort", [0.0, 1.0])
@pytest.mark.parametrize("size", [8, 14, 20, 40])
def test_acyclic_graphs_reach_their_load(size: int, effort: float) -> None:
    """Entries may run ahead, so that nothing but loads bounds the period, searched or not."""
    for seed in range(8):
        dice = random.Random(100 * seed + size)
        names = [f"t{i}" for i in range(size)]
        edges = [
            Edge(names[i], names[j])
            for j in range(1, size)
            for i in sorted({dice.randrange(j) for _ in range(dice.randrange(3))})
        ]
        platform = star(devices("d0", "d1", "d2", lanes=1), latency_s=0.1)
        modes = [
            mode(n, f"d{dice.randrange(3)}", dice.choice([0.0, dice.uniform(0.5, 1.5)]))
            for n in names
        ]
        timing = timed(
            TaskGraph("x", tasks(*names), tuple(edges)), CostTable(platform, tuple(modes))
        )
        found = best_orders(timing, effort=effort)
        assert found.period_s == pytest.approx(max(timing.loads_s.values()), rel=1e-6)
