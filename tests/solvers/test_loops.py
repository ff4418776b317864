"""Assignments and orders of graphs with cycles: compiled timing, starts, moves, and `solve`."""

import math
import random

import numpy as np
import pytest

from benchmarks.solver.loops import feedbacks, nested, pipeline, ring
from pearl.errors import InfeasibleError
from pearl.graph.period import howard
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.large.load_annealing import to_load_problem
from pearl.solvers.large.loop_tables import scratch_of, to_tables
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.orders.list_orders import in_turn
from pearl.solvers.orders.rings import to_arrays
from pearl.testing.graphs import random_limited


def some_spaces():
    """Search spaces of many kinds: rates, fused calls, groups, lanes, and links of three payers."""
    problems = [(*ring(1, 1.0, 4, tasks=40), None), (*pipeline(1, 6, 3, 4, equal=False), None)]
    problems += [(*nested(1, 0.3, 1, 4, rings=3, each=5, devices=4), None)]
    problems += [(*feedbacks(1, 0.3, tasks=20, backs=4, devices=3), None)]
    problems += [random_limited(seed) for seed in range(40)]
    for graph, costs, limits in problems:
        options = {} if limits is None else {"limits": limits}
        try:
            spaces = search_spaces(Problem(graph, costs, **options))
        except InfeasibleError:
            continue
        for space in spaces:
            if not space.costs.pair_extra_s:
                yield space


def test_compiled_timing_is_that_of_planning():
    from pearl.solvers.large import timed_native

    dice, transfers, several = random.Random(1), 0, 0
    for space in some_spaces():
        b = to_load_problem(space)
        t = to_tables(b)
        s = scratch_of(t)
        for _ in range(3):
            fits = [np.flatnonzero(np.isfinite(row)) for row in b.loads.seconds]
            if any(len(row) == 0 for row in fits):
                break
            place = np.array([dice.choice(row) for row in fits], np.int64)
            timing = build_timed_graph(b.assignment(place))
            bound, _ = timed_native.bound_of(t, place, s)
            n, firings = len(timing.names), len(space.expansion.nodes)
            # Messages of one task in turn are not in the bound: they are no arcs of the expansion.
            turns = [a for a in in_turn(timing) if a[0] < firings]
            ratio = howard(n, [*timing.raised_arcs, *turns])[0]
            assert bound == pytest.approx(max(ratio, *timing.loads_s.values()), rel=1e-9)
            arrays, sent = timed_native.timed_arrays(t, place, s)
            known = to_arrays(timing)
            assert len(arrays.lane) == n
            assert sum(arrays.occupancy) == pytest.approx(math.fsum(timing.occupancy_s), rel=1e-9)
            arcs = list(zip(arrays.tails, arrays.heads, arrays.seconds, arrays.tokens, strict=True))
            rings = [*known_rings(arrays), *arcs]
            theirs = zip(known.tails, known.heads, known.seconds, known.tokens, strict=True)
            assert howard(n, rings)[0] == pytest.approx(
                howard(n, [*known_rings(known), *theirs])[0], rel=1e-9
            )
            transfers += len(sent)
            several += max(space.expansion.firings(u) for u in range(len(space.options))) > 1
    assert transfers > 50
    assert several > 20


def known_rings(arrays):
    """Each node again after an iteration, at the soonest: the same for any numbers of nodes."""
    return [(i, i, seconds, 1) for i, seconds in enumerate(arrays.occupancy)]
