"""Single-rate expansion, maximum cycle ratio and simulation against independent computations."""

from __future__ import annotations

import math
import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from pearl.errors import SpecError
from pearl.graph import Edge, TaskGraph
from pearl.period import Arc, expand, max_cycle_ratio, simulate, start_times
from tests.graphs import dqn, loop, tasks, timed_arcs

Timed = tuple[int, list[Arc]]


def by_enumeration(n: int, arcs: list[Arc]) -> float:
    """The largest ratio over all simple cycles, one arc of the multigraph at a time."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(n))
    for k, (s, d, _, _) in enumerate(arcs):
        graph.add_edge(s, ("arc", k))
        graph.add_edge(("arc", k), d)
    best = 0.0
    for cycle in nx.simple_cycles(nx.DiGraph(graph)):
        used = [arcs[x[1]] for x in cycle if isinstance(x, tuple)]
        best = max(best, sum(a[2] for a in used) / sum(a[3] for a in used))
    return best


def by_linear_program(n: int, arcs: list[Arc]) -> float:
    """min P ≥ 0 with u_d − u_s + tokens · P ≥ seconds."""
    rows, right = [], []
    for s, d, w, m in arcs:
        row = np.zeros(n + 1)
        row[s] += 1
        row[d] -= 1
        row[n] -= m
        rows.append(row)
        right.append(-w)
    bounds = [(None, None)] * n + [(0, None)]
    result = linprog(np.eye(n + 1)[n], np.array(rows), right, bounds=bounds)
    return float(result.fun)


@settings(max_examples=150, deadline=None)
@given(timed_arcs())
def test_the_ratio_is_that_of_enumerated_cycles_and_of_the_linear_program(timed: Timed) -> None:
    n, arcs = timed
    ratio, cycle = max_cycle_ratio(n, arcs)
    assert ratio == pytest.approx(by_enumeration(n, arcs), rel=1e-9, abs=1e-12)
    if arcs:
        assert ratio == pytest.approx(by_linear_program(n, arcs), rel=1e-6, abs=1e-7)
    if cycle:
        steps = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        assert all(any((s, d) == a[:2] for a in arcs) for s, d in steps)


@settings(max_examples=100, deadline=None)
@given(timed_arcs())
def test_self_timed_execution_attains_the_ratio(timed: Timed) -> None:
    n, arcs = timed
    arcs = [*arcs, *((i, (i + 1) % n, 1.0, 1) for i in range(n))]  # strongly connected, shift-free
    try:
        ratio, _ = max_cycle_ratio(n, arcs)
    except SpecError:
        return
    start = simulate(n, arcs, 1200)
    differences = [(start[1000] - start[1000 - c]) / c for c in range(1, 121)]
    assert any(np.allclose(x, ratio, rtol=1e-9, atol=0) for x in differences)


@settings(max_examples=100, deadline=None)
@given(timed_arcs())
def test_start_times_keep_every_arc(timed: Timed) -> None:
    n, arcs = timed
    ratio, _ = max_cycle_ratio(n, arcs)
    start = start_times(n, arcs, ratio)
    assert min(start) >= 0
    for s, d, w, m in arcs:
        assert start[d] - start[s] + m * ratio >= w - 1e-9 * (1 + ratio)


def test_ratios_of_large_graphs_agree_with_a_known_critical_cycle() -> None:
    r = random.Random(1)
    n = 2000
    arcs = [(i, (i + 1) % n, 1.0, int(i == n - 1)) for i in range(n)]
    arcs += [(r.randrange(n), r.randrange(n), r.random(), 3) for _ in range(6 * n)]
    ratio, cycle = max_cycle_ratio(n, arcs)
    assert ratio >= n
    step = dict[tuple[int, int], tuple[float, int]]()
    for s, d, w, m in arcs:
        step[s, d] = max(step.get((s, d), (0.0, m)), (w, m), key=lambda x: x[0] - ratio * x[1])
    around = [step[pair] for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    assert ratio == pytest.approx(sum(w for w, _ in around) / sum(m for _, m in around))
    start = start_times(n, arcs, ratio)
    assert all(start[d] - start[s] + m * ratio >= w - 1e-6 for s, d, w, m in arcs)


def test_a_cycle_without_tokens_is_an_error_that_names_it() -> None:
    with pytest.raises(SpecError, match="has no token"):
        max_cycle_ratio(2, [(0, 1, 1.0, 1), (1, 0, 1.0, -1)])
    with pytest.raises(SpecError, match=r"x → y → x|y → x → y"):
        max_cycle_ratio(2, [(0, 1, 0.0, 0), (1, 0, 0.0, 0)], ["x", "y"])
    with pytest.raises(SpecError, match="has no token"):
        simulate(1, [(0, 0, 1.0, 0)], 3)


def test_no_cycle_has_ratio_zero() -> None:
    assert max_cycle_ratio(3, [(0, 1, 5.0, 0), (1, 2, 5.0, 1)]) == (0.0, [])


def test_expansion_follows_the_floor_formula() -> None:
    graph = TaskGraph("g", tasks("a", "b"), (Edge("a", "b", 2, 3, 1), Edge("b", "a", 3, 2, 9)))
    x = expand(graph)
    assert dict(graph.repetition) == {"a": 3, "b": 2}
    first = {(s, d): m for s, d, m, e in x.arcs if e == 0}
    # b0 needs tokens 0, 1, 2: the initial one and two of a0; b1 needs 3, 4, 5: of a1 and a2.
    a0, a1, a2 = (x.node["a", f] for f in range(3))
    b0, b1 = (x.node["b", f] for f in range(2))
    assert first == {(a2, b0): 1, (a0, b0): 0, (a1, b1): 0, (a2, b1): 0}


def test_one_lane_of_firings_is_not_one_long_firing() -> None:
    """Four firings of 1 s after one of 1 s: neither the sum nor one of them fits both cases."""
    graph = TaskGraph("g", tasks("a", "b"), (Edge("a", "b", 4, 1), Edge("b", "a", 1, 4, 4)))
    x = expand(graph)
    arcs = [(s, d, 1.0, m) for s, d, m, _ in x.arcs]
    assert max_cycle_ratio(5, arcs)[0] == pytest.approx(2.0)  # copies of b run side by side
    chain = [(x.node["b", f], x.node["b", f + 1], 1.0, 0) for f in range(3)]
    assert max_cycle_ratio(5, [*arcs, *chain])[0] == pytest.approx(5.0)


def test_a_fused_call_is_one_node() -> None:
    x = expand(dqn(4), [("replay_sample", "update", "replay_update")])
    assert len(x.nodes) == 5
    assert x.node["update", 3] == x.node["replay_sample", 0]


def test_fusing_what_waits_for_an_outsider_is_a_deadlock() -> None:
    with pytest.raises(SpecError, match="do not fuse"):
        expand(loop("a", "b", "c"), [("a", "c")])


def test_simulation_with_factors_multiplies_the_times_that_leave_a_node() -> None:
    factors = np.full((50, 1), 3.0)
    start = simulate(1, [(0, 0, 2.0, 1)], 50, factors)
    assert np.allclose(np.diff(start[:, 0]), 6.0)


def test_an_entry_that_runs_ahead_is_simulated_before_its_ring_begins() -> None:
    arcs = [(0, 1, 1.0, -1), (1, 0, 1.0, 2)]  # iteration n of node 1 follows n + 1 of node 0
    start = simulate(2, arcs, 40)
    assert np.all(start[:30, 1] >= start[1:31, 0] + 1)
    assert (start[30, 0] - start[20, 0]) / 10 == pytest.approx(2.0)
    assert math.isclose(max_cycle_ratio(2, arcs)[0], 2.0)
