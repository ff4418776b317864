"""The bound from chains and rings of classes, against enumeration of small graphs."""

import itertools
import math
from dataclasses import replace

import pytest

from benchmarks.solver.loops import pipeline, ring
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.large.chain_bound import chain_bound
from pearl.solvers.large.chain_program import ChainProgram
from pearl.solvers.model import cost_floor
from pearl.solvers.model.dag_instance import fastest
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.orders.lane_sequencing import best_orders


def least_period_s(space):
    """The least proven period of any plan of a search space, by enumeration."""
    least = math.inf
    for modes in itertools.product(*space.options):
        a = Assignment(space.expansion, space.costs, modes, (0,) * len(modes))
        if not space.violates_coupling(a):
            least = min(least, best_orders(build_timed_graph(a), below_s=least).bound_s)
    return least


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_no_plan_of_a_ring_is_below_the_bound(ratio, tokens):
    for seed in range(3):
        graph, costs = ring(seed, ratio, tokens, tasks=5, devices=3)
        (space,) = search_spaces(Problem(graph, costs))
        bound, least = chain_bound(space).bound_s, least_period_s(space)
        floor = cost_floor._cycles_s(space, fastest(space))
        assert floor * (1 - 1e-6) <= bound <= least, (seed, bound, least)


def test_one_token_and_much_memory_leave_nothing_between_bound_and_plan():
    """Then a ring is a shortest cycle, which dynamic programming finds exactly."""
    graph, costs = ring(1, 0.3, 1, tasks=6, devices=3)
    roomy = type(costs)(_with_memory(costs.platform), costs.modes)
    (space,) = search_spaces(Problem(graph, roomy))
    assert chain_bound(space).bound_s == pytest.approx(least_period_s(space), rel=1e-6)


def _with_memory(platform):
    devices = tuple(replace(d, memory_bytes=1e9) for d in platform.devices)
    return replace(platform, devices=devices)


def test_a_pipeline_pays_for_its_cuts():
    """Blocks on k devices pass k - 1 cuts forwards and again backwards."""
    for seed, in_flight in itertools.product(range(3), (1, 2, 3)):
        graph, costs = pipeline(seed, 3, 3, in_flight, equal=seed > 0)
        (space,) = search_spaces(Problem(graph, costs))
        assert 0 < ChainProgram(space).crossing_s() <= least_period_s(space) * (1 + 1e-9)
    graph, costs = pipeline(1, 12, 4, 4, equal=True)
    (space,) = search_spaces(Problem(graph, costs))
    work = sum(m.estimate.latency_s for m in costs.modes if m.device == "gpu0")
    cut = 1e-5 + 8e6 / 2.5e10
    assert ChainProgram(space).crossing_s() == pytest.approx((work + 6 * cut) / 4)
    assert chain_bound(space).bound_s >= (work + 6 * cut) / 4 * (1 - 1e-6)
