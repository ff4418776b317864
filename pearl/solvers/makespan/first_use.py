"""Compilation of tabu search before the time limit of a solve starts."""

from __future__ import annotations

import math

from pearl.solvers.first_use import is_compiled, tiny_problem
from pearl.solvers.makespan import cpsat, heft, tabu, tabu_native
from pearl.solvers.model.dag_instance import build_instance, makespan_spaces


def compile_tabu(firings: int) -> None:
    """Compile tabu search if a problem of so many firings uses it, unless this machine has."""
    if (firings >= cpsat.LARGE or not cpsat.installed()) and not is_compiled(tabu_native.search):
        search_makespan()


def search_makespan() -> None:
    """Run tabu search."""
    (space,) = makespan_spaces(tiny_problem("makespan"))
    it = build_instance(space)
    first = heft.schedule(it)
    if first is not None:
        lanes = tabu.plain_lanes(it)
        tabu.tabu_search(it, lanes, first, 10, 0.0, math.inf, 0)
