"""Searches are compiled before the time of a solve begins to count."""

from pearl.planning.problem import Problem
from pearl.solvers import first_use
from pearl.solvers.makespan import cpsat
from pearl.solvers.makespan import first_use as of_makespan
from pearl.testing.graphs import random_problem
from tests.solvers.test_highs import output_of

ROOTS = """
from pearl.solvers import first_use
from pearl.solvers.makespan.first_use import search_makespan

first_use._search_period()
search_makespan()
from pearl.graph.compiled_policy import improve_policy
from pearl.solvers.large.annealing import anneal
from pearl.solvers.large import loop_moves, timed_native
from pearl.solvers.large.chain_paths import cheapest
from pearl.solvers.makespan.tabu_native import search
from pearl.solvers.orders.modulo import fit
from pearl.solvers.orders.swaps import improve_orders

loops = loop_moves.all_bounds, loop_moves.anneal, loop_moves.cut, loop_moves.propose
loops += (timed_native.timed_arrays,)
for function in (improve_policy, anneal, cheapest, search, fit, improve_orders, *loops):
    assert function.signatures, function
    assert first_use.is_compiled(function)
"""


def test_the_tiny_problem_meets_every_compiled_search():
    assert output_of(ROOTS) == []


def test_small_problems_wait_for_no_compiler(monkeypatch):
    searched = []
    monkeypatch.setattr(first_use, "is_compiled", lambda _: False)
    monkeypatch.setattr(of_makespan, "is_compiled", lambda _: False)
    monkeypatch.setattr(first_use, "_search_period", lambda: searched.append("period"))
    monkeypatch.setattr(of_makespan, "search_makespan", lambda: searched.append("makespan"))
    small = Problem(*random_problem(1))
    first_use.compile_searches(small)
    assert searched == []
    monkeypatch.setattr(first_use, "MANY", 2)
    monkeypatch.setattr(cpsat, "LARGE", 2)
    first_use.compile_searches(small)
    first_use.compile_searches(Problem(small.graph, small.costs, objective="makespan"))
    assert searched == ["period", "makespan"]
