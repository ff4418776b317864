"""What makes the solver fast: cuts from lane orders, bounds from loads, annealing of many tasks."""

from __future__ import annotations

import time

import pytest

from benchmarks.solver.instances import large, small
from pearl import solve
from pearl.planning.problem import Problem
from pearl.solvers.large import load_annealing
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.methods import milp
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError
from pearl.verification import check_plan


def space_of(seed: int, tasks: int, devices: int, modes: int) -> SearchSpace:
    graph, costs = small(seed, tasks=tasks, devices=devices, modes=modes)
    (program,) = search_spaces(Problem(graph, costs))
    return program


@pytest.mark.parametrize("ratio", [0.0, 1.0, 3.0])
def test_the_bound_of_loads_is_the_period_forms_relaxation(ratio: float) -> None:
    graph, costs = large(3, ratio, tasks=40, devices=4)
    (p,) = search_spaces(Problem(graph, costs))
    found = LoadProgram(p, p.serial_s).solve(time.monotonic() + 600)
    form = PeriodForm(p, Problem(graph, costs), None)
    whole = form.linear.relax(form.objective_terms, 600) / form.per_s
    assert found == pytest.approx(whole, rel=1e-5)


def test_a_bound_without_time_is_zero() -> None:
    p = space_of(0, tasks=4, devices=2, modes=2)
    assert LoadProgram(p, 1.0).solve(time.monotonic() - 1) == 0.0


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_many_tasks_are_planned_close_to_a_proven_bound(
    ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By annealing and bounds of loads alone, which end by themselves with few moves."""

    def form(*given: object) -> PeriodForm:
        raise OutOfTimeError

    monkeypatch.setattr(milp, "PeriodForm", form)
    monkeypatch.setattr(load_annealing, "MOVES", 2_000)
    graph, costs = large(2, ratio, tasks=40, devices=3)
    plan = solve(graph, costs, time_limit_s=600.0)
    check_plan(plan, Problem(graph, costs))
    assert 0 < plan.bound_s <= plan.period_s
    assert plan.gap < 0.1
