"""Results of the modules of `pearl.solvers.methods` on small seeded cases."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.solver.instances import large
from benchmarks.solver.loops import small_cycles
from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem
from pearl.solvers.large import load_annealing, load_bound, load_search
from pearl.solvers.methods import (
    cpsat,
    cpsat_model,
    enumeration,
    first_schedule,
    heft,
    milp,
    relaxation_bounds,
    simple_plans,
    tabu,
)
from pearl.solvers.model.dag_instance import DagInstance, build_instance, makespan_spaces
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.testing import exhaustive
from pearl.time_limit import OutOfTimeError
from tests.solvers.kept import Clock, Kept, mixed, rounded
from tests.solvers.test_lane_rules import pool
from tests.solvers.test_makespan import random_shop

KEPT = Kept("kept_methods.json")
OBJECTIVES = ("throughput", "power_efficiency", "makespan")


def spaces(problem: Problem) -> list[SearchSpace]:
    try:
        return makespan_spaces(problem)
    except InfeasibleError:
        return []


def instances(*seeds: int) -> Iterator[tuple[Problem, DagInstance]]:
    for seed in seeds:
        problem = replace(mixed(seed), objective="makespan")
        for space in spaces(problem)[:2]:
            yield problem, build_instance(space)


def pools(*seeds: int) -> Iterator[tuple[Problem, DagInstance]]:
    for seed in seeds:
        problem = Problem(*pool(seed, firings=1 + seed % 2), "makespan")
        for space in spaces(problem):
            yield problem, build_instance(space)


def plan(found: Candidate | None) -> Any:
    if found is None:
        return None
    a = found.assignment
    return found.cost, found.period_s, [m.key for m in a.modes], a.lanes, found.ordered.orders


def outcome(found: Outcome) -> Any:
    return rounded(found.bound), found.timed_out, found.bound_from, *plan(found.best)


def free(deadline: float = math.inf, **given: Any) -> Search:
    return Search(deadline, 1, "own", workers=1, **given)


@KEPT.case()
def list_schedules() -> Any:
    return [plan(heft.schedule(it)) for _, it in instances(2, 7, 23, 26, 29, 37, 48, 141, 174)]


@KEPT.case()
def first_schedules() -> Any:
    found = []
    for _, it in instances(7, 23, 26, 29, 141):
        found.append([plan(f) for f in first_schedule._list_schedules(it)])
    return found


@KEPT.case()
def lanes_of_tabu_search() -> Any:
    found: list[Any] = []
    for _, it in [*instances(*range(0, 40, 5)), *pools(1, 2)]:
        found.append((tabu.plain_widths(it.space), tabu.plain_lanes(it)))
    return found


@KEPT.case((0, 2000), (1, 7), (2, 25))
def tabu_moves(given: tuple[int, int]) -> Any:
    """Some moves from HEFT's schedule, with perturbation after so many moves without a gain."""
    seed, stale = given
    it = build_instance(makespan_spaces(Problem(*random_shop(seed, 3, 3)))[0])
    lanes = tabu.plain_lanes(it)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabu, "STALE", stale)
        shop = tabu.build_arrays(it, lanes)
        search = tabu.TabuSearch(shop, shop.first[:-1].copy(), np.array(it.place, float), seed)
        search.run(60, math.inf, 0.0)
    best = search.best_way, search.best_ahead, search.best_behind, search.best_start
    now = search.way, search.ahead, search.behind, search.tabu, search.state
    return *best, *now, search.value, list(shop)


def tiny(objective: str, seed: int) -> Problem:
    sizes = {"most_tasks": 3, "most_devices": 2, "rates": seed % 2 == 0}
    return replace(mixed(seed, **sizes), objective=objective)


@KEPT.case(*[(objective, seed) for objective in OBJECTIVES for seed in range(0, 30, 3)])
def exhaustive_outcomes(given: tuple[str, int]) -> Any:
    try:
        return outcome(exhaustive.solve(tiny(*given), free()))
    except InfeasibleError as error:
        return type(error).__name__


@KEPT.case()
def enumerated() -> Any:
    found = []
    for seed in range(12):
        try:
            every = enumeration.every_space(tiny("throughput", seed))
        except InfeasibleError:
            continue
        all_of = [
            ([m.key for m in a.modes], a.lanes, [e.slack for e in a.expansion.graph.edges])
            for a in enumeration.assignments(every)
        ]
        found.append((len(every), enumeration.count(every), all_of))
    return found


@KEPT.case(7, 23, 26, 29, 141, 174)
def simple(seed: int) -> Any:
    found: list[Any] = []
    problem = mixed(seed)
    some = search_spaces(problem)[:2]
    for space in some:
        found += [([m.key for m in a.modes], a.lanes) for a in simple_plans._simple(space, problem)]
    floors = [(0.0, space) for space in some]
    return *found, plan(simple_plans.simple_plan(floors, problem, math.inf))


@KEPT.case(*[(objective, seed) for objective in OBJECTIVES for seed in (7, 29, 141)])
def relaxed(given: tuple[str, int]) -> Any:
    objective, seed = given
    problem = replace(mixed(seed), objective=objective)
    some = relaxation_bounds.open_spaces(problem)[:2]
    best = relaxation_bounds.to_plan(heft.schedule(build_instance(some[0])), problem)
    if best is None:
        return None
    bound = relaxation_bounds.bound(some, problem, best, math.inf)
    return (
        best.cost,
        rounded(bound.cost),
        bound.source,
        relaxation_bounds.cheap_bound(problem, best),
    )


@KEPT.case(7, 29)
def listed_outcomes(seed: int) -> Any:
    return outcome(heft.solve(mixed(seed), free()))


@KEPT.case(*[(o, s) for o in OBJECTIVES[:2] for s in (3, 8, 14, 21, 30)])
def branches(given: tuple[str, int]) -> Any:
    """The plans that the period form's search offers, and its outcome."""
    offered: list[Any] = []
    try:
        found = milp.solve(tiny(*given), free(offer=lambda c: offered.append(c.cost)))
    except InfeasibleError:
        return "infeasible"
    return offered, outcome(found)


def words(model: Any) -> Any:
    """The kinds of the rows of a constraint program, and all its numbers in order."""
    text = str(model)
    kinds = Counter(re.findall(r"[a-z_]+", text))
    return sorted(kinds.items()), [int(n) for n in re.findall(r"-?\d+", text)]


@KEPT.case(3, 23, 26, 29, 37, 141, 174, -1, -2, -4, -5, -7)
def programs(seed: int) -> Any:
    found: list[Any] = []
    for _, it in instances(seed) if seed > 0 else pools(-seed):
        first = heft.schedule(it)
        if first is not None:
            model = cpsat_model.Model(it, first, first.cost, 0.3 * first.cost)
            found += [model.scale, model.horizon, model.floor, *words(model.model.Proto())]
    return found


class Interrupted:
    """A method under a clock that passes the deadline at the look of this number. Programs have
    the time that they need."""

    def __init__(self, solve: Any, *modules: Any) -> None:
        self.solve, self.modules = solve, modules

    def outcome(self, problem: Problem, looks: int, **given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            clock = Clock()
            for module in self.modules:
                patch.setattr(module, "time", clock)
            form = relaxation_bounds.PeriodForm
            relax, run = form.relaxation, form.run
            patch.setattr(form, "relaxation", lambda self, _: relax(self, 600.0))
            patch.setattr(form, "run", lambda self, below, _: run(self, below, 600.0))
            patch.setattr(tabu, "MOVES", 30)
            deadline = clock.start_s + 1024 * (looks + 0.5)
            try:
                return outcome(self.solve(problem, free(deadline, **given)))
            except (InfeasibleError, OutOfTimeError) as error:
                return type(error).__name__


@KEPT.case(*[(o, s) for o in OBJECTIVES for s in (2, 14, 20)])
def interrupted_enumerations(given: tuple[str, int]) -> Any:
    problem = tiny(*given)
    return [
        Interrupted(exhaustive.solve, exhaustive).outcome(problem, n) for n in (0, 1, 2, 3, 4, 6)
    ]


@KEPT.case(2, 14)
def interrupted_searches(seed: int) -> Any:
    own, problem = Interrupted(tabu.solve, tabu, first_schedule), tiny("makespan", seed)
    found = [own.outcome(problem, looks) for looks in (2, 6, 20, 90)]
    start = tabu.solve(problem, free()).best
    return *found, own.outcome(problem, 2, start=start)


@KEPT.case()
def interrupted_lists() -> Any:
    problem = mixed(23)
    own = Interrupted(heft.solve, relaxation_bounds)
    return [own.outcome(problem, looks) for looks in (0, 1, 2)]


@KEPT.case(*OBJECTIVES)
def schedules_of_last_resort(objective: str) -> Any:
    found = []
    for seed in (7, 29, 141):
        problem = replace(mixed(seed), objective=objective)
        for space in relaxation_bounds.open_spaces(problem)[:1]:
            it = build_instance(space)
            far = float(2**40)
            found.append(plan(relaxation_bounds.any_feasible_schedule(it, problem, far)))
        stuck = relaxation_bounds.listed_outcome(lambda _: None, problem, free(far))
        found.append(outcome(stuck))
    return found


@KEPT.case(2, 5)
def overlapping(seed: int) -> Any:
    """The search of graphs with cycles, with a few steps."""
    problem = Problem(*small_cycles(seed))
    own = milp._Branches(search_spaces(problem), problem, free(2.0**40, limit_s=0.02))
    own._loops = [0]
    own._overlap()
    return plan(own.best), own.bound.source, rounded(own.bound.cost)


@KEPT.case(1, 2)
def annealed_branches(workers: int) -> Any:
    problem = Problem(*large(2, 1.0, tasks=16, devices=3))
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in (milp, load_annealing, load_bound, load_search):
            patch.setattr(module, "time", clock)
        patch.setattr(load_annealing, "MOVES", 1)
        patch.setattr(load_annealing.Annealing, "start", load_annealing.Annealing.run)
        offered: list[float] = []
        until = clock.start_s + 2.0**22
        given = {"workers": workers, "offer": lambda c: offered.append(c.cost)}
        search = replace(free(until), **given)
        own = milp._Branches(search_spaces(problem), problem, search)
        own._anneal()
        own.stop()
    return plan(own.best), own.bound.source, rounded(own.bound.cost), offered


@KEPT.case(*[(seed, "throughput") for seed in (3, 8)], (30, "power_efficiency"))
def steps_of_branches(given: tuple[int, str]) -> Any:
    """Single steps: search spaces left out, orders of few nodes, then of more, and cuts."""
    seed, objective = given
    problem = tiny(objective, seed)
    own = milp._Branches(search_spaces(problem), problem, free(2.0**40))
    own.leave_out(1e-9)
    found: list[Any] = [own.bound, own.timed_out, own._worth(1.0)]
    for _ in range(3):
        if own._open:
            own._next(min(own._open))
        found.append((plan(own.best), own.bound.source, len(own._ordered), sorted(own._open)))
    assert own.best is not None
    a = own.best.assignment
    for cost in (0.5 * own.best.cost, own.best.cost, 2 * own.best.cost):
        found.append((milp._period_at(problem, a, cost), own._worth(cost)))
    own._order(a, 0)
    found += [sorted(b for b, _ in own._ordered)]
    own._order_further()
    return *found, len(own._ordered), plan(milp._better(None, [a, a], problem, 2.0**40))


@pytest.mark.parametrize("name", KEPT.cases)
def test_results_are_those_that_are_kept(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith("programs") and not cpsat.installed():
        pytest.skip("needs the extra cpsat")
    KEPT.check(name, request.config.getoption("--write"))
