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
from tests.graphs import timed_arcs

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
    assert howard(n, arcs)[0] == pytest.approx(ratio, rel=1e-12)


def test_a_cycle_with_too_few_tokens_is_told_how_many_it_has_and_needs() -> None:
    def cycle(tokens: int) -> TaskGraph:
        edges = (
            Edge("a", "b", production=2, consumption=3),
            Edge("b", "a", production=3, consumption=2, tokens_seq=6),
            Edge("b", "c", production=3, consumption=2),
            Edge("c", "a", tokens_seq=tokens),
        )
        return TaskGraph("cycle", tasks("a", "b", "c"), edges)

    with pytest.raises(SpecError, match="c → a has 1, and needs 2"):
        expand(cycle(1))
    assert expand(cycle(2)).nodes
    alone = TaskGraph("own", tasks("a"), (Edge("a", "a", 2, 2, tokens_seq=1),))
    with pytest.raises(SpecError, match="a → a has 1, and needs 2"):
        expand(alone)
