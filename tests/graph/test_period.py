"""Single-rate expansion, maximum cycle ratio and simulation against independent computations."""

from __future__ import annotations

import math
import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from pearl.errors import SpecError
from pearl.graph import cycle_ratio, policy_iteration
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import expand, max_cycle_ratio, simulate, start_times, token_free_cycle
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.testing.graphs import tasks
from tests.graphs import dqn, timed_arcs

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
    q = dqn(4).repetition
    assert [x.firings(u) for u, unit in enumerate(x.units) if len(unit) > 1] == [1]
    assert all(x.firings(u) == q[t[0]] for u, t in enumerate(x.units) if len(t) == 1)
    assert max(q.values()) > 1


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


def token_by_token(graph: TaskGraph, seconds: dict[str, float], firings: int) -> dict[str, list]:
    """Start times of the first firings of every task by the rules of dataflow alone: token k of an
    edge is there at the start if k < m, else at the end of firing ⌊(k − m) / p⌋ of its source;
    firing n takes tokens n · c … (n + 1) · c − 1 of every edge into it."""
    start: dict[str, list] = {t.name: [None] * firings for t in graph.tasks}

    def ready(task: str, n: int) -> float | None:
        latest = 0.0
        for e in graph.edges:
            if e.dst != task:
                continue
            for k in range(n * e.consumption, (n + 1) * e.consumption):
                if k >= e.tokens:
                    source = (k - e.tokens) // e.production
                    begun = start[e.src][source] if source < firings else None
                    if begun is None:
                        return None
                    latest = max(latest, begun + seconds[e.src])
        return latest

    changed = True
    while changed:
        changed = False
        for task, times in start.items():
            for n in range(firings):
                if times[n] is None and (at := ready(task, n)) is not None:
                    times[n], changed = at, True
    return start


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 11),
    st.integers(0, 9),
    st.sampled_from([(1.0, 1.0), (1.0, 0.25), (0.5, 3.0)]),
)
def test_an_expansion_starts_every_firing_when_its_tokens_are_there(
    p: int, c: int, m: int, more: int, times: tuple[float, float]
) -> None:
    """Rates and tokens of every kind, multiples of one another or not, against single tokens."""
    back = p + c - math.gcd(p, c) + more
    edges = (
        Edge("a", "b", p, c, m),
        Edge("b", "a", c, p, back),
        Edge("a", "a", tokens_seq=2),
        Edge("b", "b", tokens_seq=1),
    )
    graph = TaskGraph("g", tasks("a", "b"), edges)
    x = expand(graph)
    seconds = dict(zip("ab", times, strict=True))
    arcs = [(s, d, seconds[x.units[x.nodes[s][0]][0]], n) for s, d, n, _ in x.arcs]
    found = simulate(len(x.nodes), arcs, 6)
    q = graph.repetition
    told = token_by_token(graph, seconds, 6 * max(q.values()))
    for (task, f), node in x.node.items():
        for n in range(6):
            assert found[n, node] == pytest.approx(told[task][n * q[task] + f]), (task, f, n)


@settings(max_examples=150, deadline=None)
@given(timed_arcs(), st.integers(1, 6))
def test_every_iteration_is_simulated_also_of_nodes_that_run_ahead(
    timed: Timed, iterations: int
) -> None:
    """Oracle: the least times that satisfy every arc within the iterations, by relaxation of all
    of them at once."""
    n, arcs = timed
    least = np.zeros((iterations, n))
    for _ in range(iterations * n + 1):
        before = least.copy()
        for s, d, w, m in arcs:
            for k in range(iterations):
                if 0 <= k - m < iterations:
                    least[k, d] = max(least[k, d], least[k - m, s] + w)
        if np.array_equal(before, least):
            break
    assert simulate(n, arcs, iterations) == pytest.approx(least)


def test_the_last_iterations_of_a_node_that_runs_ahead_have_their_times() -> None:
    arcs = [(0, 1, 1.0, -2), (1, 1, 1.0, 1), (0, 0, 2.0, 1)]
    start = simulate(2, arcs, 4)
    assert start[:, 0].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert start[:, 1].tolist() == [5.0, 7.0, 8.0, 9.0]  # 2 and 3 wait for what is beyond the last


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_a_cycle_through_every_node_is_found_where_it_has_no_token(n: int) -> None:
    """A ring of all nodes is the longest cycle there is; one token on it, and it is none."""
    for tokens in (0, 1):
        ring = [(i, (i + 1) % n, 0.0, tokens if i == n - 1 else 0) for i in range(n)]
        assert sorted(token_free_cycle(n, ring)) == (list(range(n)) if tokens == 0 else [])
    chain = [(i, i + 1, 0.0, 0) for i in range(n - 1)]
    assert token_free_cycle(n, chain) == []
    assert token_free_cycle(n, [*chain, *((i, i, 0.0, 1) for i in range(n))]) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.data())
def test_a_cycle_without_tokens_is_found_if_and_only_if_there_is_one(n: int, data) -> None:
    node = st.integers(0, n - 1)
    arcs = [
        (s, d, 0.0, m)
        for s, d, m in data.draw(st.lists(st.tuples(node, node, st.integers(-1, 2)), max_size=10))
    ]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for s, d, _, m in arcs:
        graph.add_edge(s, d, m=min(m, graph.edges[s, d]["m"]) if graph.has_edge(s, d) else m)
    sums = [
        sum(graph.edges[a, b]["m"] for a, b in zip(c, [*c[1:], c[0]], strict=True))
        for c in nx.simple_cycles(graph)
    ]
    found = token_free_cycle(n, arcs)
    assert bool(found) == any(total <= 0 for total in sums)
    if found:
        steps = zip(found, [*found[1:], found[0]], strict=True)
        assert sum(graph.edges[a, b]["m"] for a, b in steps) <= 0


@pytest.mark.parametrize("seed", range(4))
def test_news_that_travels_within_a_round_changes_no_ratio(seed: int, monkeypatch) -> None:
    """Graphs of many nodes go through the improved values at once, others round by round."""
    r = random.Random(seed)
    n = 120
    arcs = [(i, (i + 1) % n, r.uniform(0, 1), int(i == n - 1)) for i in range(n)]
    for _ in range(3 * n):
        s, d = r.randrange(n), r.randrange(n)
        arcs.append((s, d, r.uniform(0, 1), r.randint(1, 3) if d <= s else r.randint(0, 2)))
    monkeypatch.setattr(policy_iteration, "EAGER", 10**9)
    monkeypatch.setattr(cycle_ratio, "COMPILED_ARCS", 10**9)
    ratio, _ = howard(n, arcs)
    monkeypatch.setattr(policy_iteration, "EAGER", 1)
    eager, cycle = howard(n, arcs)
    assert eager == pytest.approx(ratio, rel=1e-12)
    seconds = {
        (s, d): max((w - ratio * m, w, m) for i, j, w, m in arcs if (i, j) == (s, d))
        for s, d in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    }
    tokens = sum(m for _, _, m in seconds.values())
    assert sum(w for _, w, _ in seconds.values()) / tokens == pytest.approx(ratio, rel=1e-12)
