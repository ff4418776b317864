"""What makes the solver fast: cuts from lane orders, bounds from loads, annealing of many tasks."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.solver.instances import large, small
from benchmarks.solver.scale import LIMIT_S, apart
from benchmarks.solver.speed import timed, yardstick
from pearl import solve
from pearl.graph.limits import Limits
from pearl.planning.plan_validation import check_plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.large import load_annealing
from pearl.solvers.large.load_annealing import Annealing, counting_bound, greedy, to_load_problem
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.large.load_search import FEW, LoadSearch, applies_to
from pearl.solvers.methods import milp
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.solvers.period.order_cuts import conflict_units, cut_period
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError


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


@pytest.mark.parametrize("idle_w", [0.0, 3.0])
def test_a_cost_in_joules_is_a_period_only_where_idling_draws_power(idle_w: float) -> None:
    p = space_of(3, tasks=4, devices=3, modes=1)
    places = tuple(
        replace(d, idle_power_w=idle_w, active_power_w=9.0) for d in p.costs.platform.devices
    )
    p = replace(p, costs=replace(p.costs, platform=replace(p.costs.platform, devices=places)))
    a = next(iter(assignments(p)))
    firings = [p.expansion.firings(u) for u in range(len(a.modes))]
    work_j = math.fsum(n * m.estimate.energy_j for n, m in zip(firings, a.modes, strict=True))
    found_s = cut_period(p, a, "power_efficiency", 100.0)(range(len(a.modes)))
    if idle_w:
        assert found_s == pytest.approx((100.0 - work_j) / (idle_w * len(places)))
    else:
        assert found_s == math.inf


@pytest.mark.parametrize("ratio", [0.0, 1.0, 3.0])
def test_the_bound_of_loads_is_the_period_forms_relaxation(ratio: float) -> None:
    graph, costs = large(3, ratio, tasks=40, devices=4)
    (p,) = search_spaces(Problem(graph, costs))
    found = LoadProgram(p, p.serial_s).solve(time.monotonic() + 600)
    whole = PeriodForm(p, Problem(graph, costs), None).relaxation(600)
    assert found == pytest.approx(whole, rel=1e-5)


def test_the_bound_of_loads_is_below_every_optimum() -> None:
    for seed in range(8):
        p = space_of(seed, tasks=5, devices=3, modes=2)
        best = min(build_timed_graph(a).order_bound_s for a in assignments(p))
        bound = LoadProgram(p, best).solve(time.monotonic() + 600)
        assert 0 < bound <= best * (1 + 1e-6)


def test_a_bound_without_time_is_zero() -> None:
    p = space_of(0, tasks=4, devices=2, modes=2)
    assert LoadProgram(p, 1.0).solve(time.monotonic() - 1) == 0.0


def test_annealed_loads_are_those_of_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_annealing, "MOVES", 1_000)
    graph, costs = large(1, 1.0, tasks=60, devices=5)
    (p,) = search_spaces(Problem(graph, costs))
    b = to_load_problem(p)
    start = greedy(b)
    assert start is not None
    search = Annealing(b, start, seed=1, deadline=math.inf, runs=1)
    search.run()
    largest, place = search.best
    found = b.assignment(place)
    assert not p.violates_coupling(found)
    assert max(build_timed_graph(found).loads_s.values()) == pytest.approx(largest)
    before = max(build_timed_graph(b.assignment(start)).loads_s.values())
    assert largest < before
    assert counting_bound(b, largest) <= largest

    whole = LoadSearch(p, None, largest, seed=1, workers=1)
    assert whole.stop() == []
    whole._searches.append(search)
    assert [build_timed_graph(a).loads_s for a in whole.stop()] == [
        build_timed_graph(found).loads_s
    ]


@pytest.mark.parametrize("seed", [1, 5])
def test_annealing_keeps_to_the_memory_of_the_devices(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_annealing, "MOVES", 5)
    graph, costs = large(seed, 1.0, tasks=8, devices=2)
    (space,) = search_spaces(Problem(graph, costs))
    b = to_load_problem(space)
    start = greedy(b)
    assert start is not None
    search = Annealing(b, start, seed=1, deadline=math.inf, runs=1)
    search.run()
    place = search.best[1]
    of = b.loads.device[place]
    used = np.bincount(of, weights=b.loads.memory, minlength=len(b.loads.capacity))
    assert (used <= b.loads.capacity).all()


@pytest.mark.parametrize(
    ("tasks", "limits", "applies"),
    [
        (FEW, Limits(), True),
        (FEW - 1, Limits(), False),
        (FEW, Limits(max_lanes=2), False),
        (FEW, Limits(power_w=1e3), False),
    ],
)
def test_loads_are_annealed_of_many_tasks_without_a_limit_that_couples_lanes(
    tasks: int, limits: Limits, applies: bool
) -> None:
    graph, costs = large(1, 1.0, tasks=tasks, devices=2)
    problem = Problem(graph, costs, limits)
    (space,) = search_spaces(Problem(graph, costs, replace(limits, power_w=None)))
    assert applies_to(space, problem) is applies


def test_the_load_program_in_whole_numbers_is_scaled_by_the_annealed_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_annealing, "MOVES", 20)
    monkeypatch.setattr(Annealing, "start", Annealing.run)
    monkeypatch.setattr(Annealing, "join", lambda *_: None)
    graph, costs = large(1, 1.0, tasks=6, devices=2)
    (space,) = search_spaces(Problem(graph, costs))
    search = LoadSearch(space, None, 1e9, seed=1, workers=1)
    end = time.monotonic() + 600
    search.run(end, end)
    (annealed_s, _) = search._searches[0].best
    assert search.loads.per_s == pytest.approx(100 / annealed_s)
    exactly_s = max(build_timed_graph(search.found()[0]).loads_s.values())
    assert search.bound.cost == pytest.approx(exactly_s)


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
