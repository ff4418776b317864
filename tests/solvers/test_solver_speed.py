"""What makes the solver fast: cuts from lane orders, bounds from loads, annealing of many tasks."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from benchmarks.solver.instances import large, small
from benchmarks.solver.scale import LIMIT_S, apart
from benchmarks.solver.speed import timed, yardstick
from pearl import solve
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.large import load_annealing
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.methods import milp
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.period.order_cuts import conflict_units, cut_period
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError
from pearl.verification import check_plan


def space_of(seed: int, tasks: int, devices: int, modes: int) -> SearchSpace:
    graph, costs = small(seed, tasks=tasks, devices=devices, modes=modes)
    (program,) = search_spaces(Problem(graph, costs))
    return program


def assignments(p: SearchSpace) -> list[Assignment]:
    lanes = (0,) * len(p.options)
    found = (Assignment(p.expansion, p.costs, m, lanes) for m in itertools.product(*p.options))
    return [a for a in found if not p.violates_coupling(a)]


def test_no_plan_better_than_the_best_is_cut_off_with_an_assignment() -> None:
    general, several = 0, 0
    for seed in range(8):
        p = space_of(seed, tasks=6, devices=3, modes=1)
        valued = [(best_orders(build_timed_graph(a)), a) for a in assignments(p)]
        periods = [o.period_s for o, _ in valued]
        gaps = [
            (o, a) for o, a in valued if build_timed_graph(a).order_bound_s < o.bound_s * (1 - 1e-6)
        ]
        for ordered, a in gaps[:5]:
            units = conflict_units(p, a, cut_period(p, a, "throughput", ordered.period_s))
            if units is None:
                continue
            general += 1
            several += len(units) < len(p.options)
            cut = [
                k
                for k, (_, b) in enumerate(valued)
                if all(
                    b.modes[u].device == a.modes[u].device
                    and b.modes[u].estimate.latency_s >= latency
                    and b.modes[u].estimate.occupancy_s >= occupancy
                    for u, (latency, occupancy) in units.items()
                )
            ]
            assert any(valued[k][1] is a for k in cut)
            assert min(periods[k] for k in cut) >= ordered.period_s * (1 - 1e-8)
    assert general > 13
    assert several > 3


@pytest.mark.parametrize("ratio", [0.0, 1.0, 3.0])
def test_the_bound_of_loads_is_the_period_forms_relaxation(ratio: float) -> None:
    graph, costs = large(3, ratio, tasks=40, devices=4)
    (p,) = search_spaces(Problem(graph, costs))
    found = LoadProgram(p, p.serial_s).solve(time.monotonic() + 600)
    whole = PeriodForm(p, Problem(graph, costs), None).relaxation(600)
    assert found == pytest.approx(whole, rel=1e-5)


def test_a_bound_without_time_is_zero() -> None:
    p = space_of(0, tasks=4, devices=2, modes=2)
    assert LoadProgram(p, 1.0).solve(time.monotonic() - 1) == 0.0


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


def test_a_scale_run_tells_its_own_time_and_memory() -> None:
    result = apart(0, 1.0, 12, 2, 600.0)
    assert result.tasks == 12
    assert 0 <= result.above < math.inf
    assert 1e7 < result.peak_bytes < 1e9
    assert result.cpu_s > 0
    assert LIMIT_S < 30


def test_a_ring_is_proven_and_timed_beside_a_linear_program() -> None:
    proven, wall_s, cpu_s = timed(1, 5)
    assert proven
    assert cpu_s > 0
    assert wall_s > 0
    assert min(yardstick()()) > 0
