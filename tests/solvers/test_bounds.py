"""Every bound of the period against exhaustive search: none is above the best plan."""

import math
from itertools import pairwise

import pytest

from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import BOUND_SOURCES
from pearl.planning.problem import Problem
from pearl.solvers import METHODS
from pearl.solvers.large.chain_bound import chain_bound
from pearl.solvers.large.load_annealing import counting_bound
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.methods.relaxation_bounds import work_bound
from pearl.solvers.model import cost_floor
from pearl.solvers.model.dag_instance import fastest
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import devices, mode, random_limited, star
from pearl_devices import Kernel, Link, Platform

LONG_S = 3600.0


def bounds_of(problem, known_s):
    """Source → the least bound over the search spaces, in seconds."""
    least = {}
    for space in search_spaces(problem):
        quick = fastest(space)
        form = PeriodForm(space, problem, None)
        bounds = {
            "cycles": cost_floor._cycles_s(space, quick),
            "work": cost_floor._work_s(space, quick),
            "links": cost_floor._links_s(space, quick),
            "floor": cost_floor.period_floor_s(space),
            "loads": LoadProgram(space, known_s).solve(math.inf),
            "count": counting_bound(space, known_s),
            "chains": chain_bound(space, 10).bound_s,
            "relaxation": form.linear.relax(form.objective_terms, LONG_S) / form.per_s,
        }
        for name, bound in bounds.items():
            least[name] = min(bound, least.get(name, math.inf))
    return {**least, "tasks": work_bound(problem).cost}


def compared(seeds, **sizes):
    """Compare the bounds of small cyclic graphs; source → how often it is positive, and how often
    it meets the best plan."""
    positive, met = dict[str, int](), dict[str, int]()
    for seed in seeds:
        graph, costs, limits = random_limited(seed, **sizes)
        try:
            best = solve(
                graph, costs, limits=limits, method="pearl.testing.exhaustive", time_limit_s=LONG_S
            )
        except InfeasibleError:
            continue
        assert best.status == "optimal"
        for name, bound in bounds_of(Problem(graph, costs, limits), best.period_s).items():
            assert bound <= best.period_s * (1 + 1e-9), (seed, name, bound, best.period_s)
            positive[name] = positive.get(name, 0) + (bound > 0)
            met[name] = met.get(name, 0) + (bound > best.period_s * (1 - 1e-6))
    return positive, met


def test_no_bound_is_above_the_best_plan_of_a_few_small_cyclic_graphs():
    positive, met = compared(range(12), most_tasks=3, most_devices=3, rates=False)
    assert all(n > 0 for name, n in positive.items() if name != "links"), positive
    assert met["floor"] > 3
    assert met["relaxation"] > 3


@pytest.mark.slow
def test_no_bound_is_above_the_best_plan_of_300_small_cyclic_graphs():
    positive, met = compared(range(1000, 1300), most_tasks=4, most_devices=3)
    assert positive["links"] > 0
    assert all(n > 0 for n in met.values()), met


def two_on_each(link):
    """a feeds b, which only another device can run; then b feeds a."""
    edges = (Edge("a", "b", bytes=8e3), Edge("b", "a", tokens_seq=2, bytes=0.0))
    graph = TaskGraph("two", tuple(Task(n, Kernel(n)) for n in "ab"), edges)
    platform = Platform("pair", devices("x", "y"), (link,))
    return graph, CostTable(platform, (mode("a", "x", 1e-6), mode("b", "y", 1e-6)))


def test_messages_that_must_cross_bound_the_period():
    """Two tokens a cycle of 12 µs; the link takes 8 and 1 µs an iteration."""
    graph, costs = two_on_each(Link("x", "y", 1e-6, 1e9, 5e-7, paid_by="link"))
    (space,) = search_spaces(Problem(graph, costs))
    quick = fastest(space)
    assert cost_floor._links_s(space, quick) == pytest.approx(9e-6)  # 8 + 0.5 there, 0.5 back
    assert cost_floor._cycles_s(space, quick) == pytest.approx((1 + 1 + 8 + 1 + 1) * 1e-6 / 2)
    floor = cost_floor.period_floor(space)
    assert (floor.cost, floor.source) == (pytest.approx(9e-6), "links")
    assert solve(graph, costs).period_s == pytest.approx(10.5e-6)  # entries of the lanes wait


def test_a_plan_names_the_bound_that_it_is_held_against():
    graph, costs = two_on_each(Link("x", "y", 1e-6, 1e9, 5e-7, paid_by="link"))
    assert solve(graph, costs, method="heft").bound_from == "links"
    for seed in range(4):
        graph, costs, limits = random_limited(seed, most_tasks=4)
        for objective in ("throughput", "power_efficiency", "makespan"):
            for method in ("heft", None):
                if method and objective not in METHODS[method].objectives:
                    continue
                try:
                    plan = solve(graph, costs, limits=limits, objective=objective, method=method)
                except InfeasibleError:
                    continue
                assert plan.bound_from in BOUND_SOURCES
                assert bool(plan.bound_from) == math.isfinite(plan.bound_value)
                assert plan.bound_from or plan.status != "optimal"


def test_cheap_bounds_are_there_however_little_time_there_is():
    names = [f"t{i}" for i in range(300)]
    edges = tuple(Edge(a, b) for a, b in pairwise(names))
    graph = TaskGraph("chain", tuple(Task(n, Kernel(n)) for n in names), edges)
    costs = CostTable(star(devices("x", "y")), tuple(mode(n, d, 1e-3) for n in names for d in "xy"))
    plan = solve(graph, costs, time_limit_s=1e-3, limits=Limits())
    assert plan.status in ("time_limit", "optimal")  # balanced loads may reach the bound
    assert plan.bound_s == pytest.approx(300e-3 / 4)
    assert plan.bound_from in ("work", "search")  # whether the search ended in time or not
