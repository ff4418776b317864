"""Results of the modules of `pearl.solvers.large` on small seeded cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.solver.instances import large
from benchmarks.solver.loops import feedbacks, nested, pipeline, ring, small_cycles
from pearl.planning.problem import Problem
from pearl.solvers.large import annealing, load_annealing, loop_moves, starts, timed_native
from pearl.solvers.large.chain_bound import climb
from pearl.solvers.large.chain_program import ChainProgram, Prices
from pearl.solvers.large.load_annealing import LoadProblem, greedy, to_load_problem
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.large.loop_search import LoopSearch
from pearl.solvers.large.loop_tables import scratch_of, to_tables
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from tests.solvers.kept import Clock, Kept, rounded, spaces_of

KEPT = Kept("kept_large.json")
MIXED = (29, 135, 141, 158, -26, -174)
LOOPS = {
    "ring": lambda: ring(1, 0.3, 4, tasks=12, devices=3),
    "pipeline": lambda: pipeline(1, 4, 3, 4, equal=False),
    "nested": lambda: nested(1, 0.3, 1, 4, rings=3, each=4, devices=3),
    "feedbacks": lambda: feedbacks(1, 0.3, tasks=14, backs=3, devices=3),
    "cycles": lambda: small_cycles(2),
    "acyclic": lambda: large(2, 1.0, tasks=14, devices=3),
}


def space(name: Any) -> SearchSpace:
    """The search space of a loop, or that of a random problem with the most units; of a negative
    seed that with the fewest, which has fused calls."""
    if isinstance(name, int):
        return max(spaces_of(abs(name)), key=lambda s: len(s.options) * (1 if name > 0 else -1))
    return search_spaces(Problem(*LOOPS[name]()))[0]


def places(b: LoadProblem, count: int) -> list[Any]:
    """Random lanes of the items, each allowed."""
    dice = np.random.default_rng(5)
    able = [np.flatnonzero(np.isfinite(row)) for row in b.loads.seconds]
    return [np.array([dice.choice(row) for row in able], np.int64) for _ in range(count)]


@KEPT.case(*MIXED, "pipeline", "nested")
def tables(name: Any) -> Any:
    b = to_load_problem(space(name))
    return b.lanes, list(b.loads), list(to_tables(b))


@KEPT.case(*MIXED, "pipeline", "nested")
def timing(name: Any) -> Any:
    """Loads, bounds and timed graphs of some assignments."""
    b = to_load_problem(space(name))
    t = to_tables(b)
    s, found = scratch_of(t), []
    for place in places(b, 3):
        bound = timed_native.bound_of(t, place, s)
        arrays = timed_native.timed_arrays(t, place, s)
        found.append((bound, s.occupancy, s.load, s.sent, s.seconds, list(arrays[0]), arrays[1]))
        a = b.assignment(place)
        found.append((a.lanes, b.place_of(a), [m.key for m in a.modes]))
    return found


@KEPT.case(29, 141, -174, "ring", "pipeline", "acyclic")
def moves(name: Any) -> Any:
    """Random moves, accepted changes, and annealing, with the random state after each."""
    b = to_load_problem(space(name))
    t = to_tables(b)
    s, state = scratch_of(t), np.array([7 << 40], np.uint64)
    place = greedy(b)
    assert place is not None
    given = t, b.loads.seconds, b.loads.near_first, b.loads.near
    found, moved, before = [], np.zeros(64, np.int64), np.zeros(64, np.int64)
    for _ in range(30):
        after = place.copy()
        count = loop_moves._move(*given[2:], after, len(t.device), state, moved, before)
        found.append((count, after, moved[:count].copy(), before[:count].copy()))
    trial, best = np.empty_like(place), np.empty_like(place)
    bound_s = timed_native.bound_of(t, place, s)[0]
    for below in (bound_s * 1.05, bound_s * 0.97, 0.0):
        left = loop_moves.propose(*given, place, trial, s, state, below, 12, 3)
        found.append((left, trial.copy(), state.copy()))
    least = loop_moves.anneal(*given, place, best, s, state, 60, 0.1, 0.01)
    return *found, least, place, best, state


@KEPT.case(29, 135, -174, "pipeline", "feedbacks", "acyclic")
def first_places(name: Any) -> Any:
    b = to_load_problem(space(name))
    t = to_tables(b)
    dice = np.random.default_rng(3)
    rows = list(starts.contiguous(b, t, dice))
    able = [np.flatnonzero(np.isfinite(row)) for row in b.loads.seconds]
    devices = np.array([b.loads.device[row[-1]] for row in able])
    laid = [starts.spread(b, devices), greedy(b)]
    laid += [starts.repaired(b, p) for p in [b.loads.seconds.argmin(axis=1), *places(b, 3)]]
    copies = starts._copies(b, t, np.arange(len(able))[::-1].copy())
    return rows, laid, starts.few(b), copies


@KEPT.case(-174, "cycles")
def all_assignments(name: Any) -> Any:
    b = to_load_problem(space(name))
    t = to_tables(b)
    return [[*starts.every(b, t, scratch_of(t))][k] for k in (0, 1, 5)]


@KEPT.case((2, 29), (2, 141), (4, 135), (8, -174), (4, "acyclic"), (32, "pipeline"))
def annealed_loads(given: tuple[int, Any]) -> Any:
    power, name = given
    b = to_load_problem(space(name))
    place = greedy(b)
    assert place is not None
    best, state = place.copy(), np.array([5 << 44], np.uint64)
    target = float(b.loads.seconds.min(axis=1).sum()) / len(b.lanes)
    found = annealing.anneal(b.loads, place, best, state, 150, 5.0, 0.05, target, power)
    return found, place, best, state


@KEPT.case("acyclic", "ring", 29, -174)
def counts(name: Any) -> Any:
    b = to_load_problem(space(name))
    most = float(b.loads.seconds.min(axis=1).sum())
    return load_annealing.counting_bound(b, most), load_annealing.counting_bound(b, most / 4)


@KEPT.case("acyclic", "pipeline", *MIXED)
def load_programs(name: Any) -> Any:
    loads = LoadProgram(space(name), 0.5)
    linear = loads.linear
    return loads.copying, loads.loads, loads.on, linear.upper, rounded(loads.solve(math.inf))


@KEPT.case("ring", "pipeline", "nested", "feedbacks", "cycles", *MIXED)
def chain_programs(name: Any) -> Any:
    """Chains, their messages and cycles, and the cheapest assignment at some prices."""
    p = ChainProgram(space(name))
    ratio, crossing = p.ratio_s(None), p.crossing_s()
    found: list[Any] = [ratio, crossing, p.priced, p.tight, p.work, p.memory, p.lanes]
    found += [p.wait, p.per_byte, p.taking, p.taking_per_byte]
    for turn in range(3):
        count = len(p.cycles)
        prices = Prices(
            np.linspace(0.3, 0.6, count) / (2 * count),
            np.where(p.priced, np.linspace(1.0, 2.0, len(p.priced)), 0.0) / 9,
            np.where(p.tight, 0.1 * ratio * (1 + turn), 0.0),
        )
        value, devices = p.cheapest(prices)
        found += [value, devices, p.uses(devices), p.ratio_s(devices)]
    for c in p.chains:
        found += [c.ring, c.classes, c.count_to, c.bytes_to, c.count_from, c.bytes_from]
    for cycle in p.cycles:
        found += [list(vars(cycle).values())]
    return found


@KEPT.case("ring", "pipeline", "nested", "cycles", 29, -174)
def chain_bounds(name: Any) -> Any:
    bound = climb(ChainProgram(space(name)), 6)
    return (
        rounded(bound.bound_s),
        bound.devices[0][0] if bound.devices else None,
        len(bound.devices),
    )


@KEPT.case("ring", "pipeline", "nested", "feedbacks", "cycles", 29, -174)
def loop_searches(name: Any) -> Any:
    search = LoopSearch(space(name), 1)
    search.run(0.02)
    best, found = search.best, search.orders()
    assert best is not None
    assert found is not None
    return best.period_s, best.place, best.rings, search._left, search._length, found[1:]


@KEPT.case("acyclic", 29)
def annealing_runs(name: Any) -> Any:
    """Two runs under a clock that advances with each look."""
    found = []
    for deadline, step_s in ((math.inf, 1e-4), (0.05, 1e-4)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(load_annealing, "time", Clock(step_s))
            patch.setattr(load_annealing, "MOVES", 4)
            b = to_load_problem(space(name))
            start = greedy(b)
            assert start is not None
            search = load_annealing.Annealing(b, start, 1, deadline, 1)
            search.run()
            found.append((search.best, search._moves_per_s, load_annealing.time.now))
    return found


@pytest.mark.parametrize("name", KEPT.cases)
def test_results_are_those_that_are_kept(name: str, request: pytest.FixtureRequest) -> None:
    KEPT.check(name, request.config.getoption("--write"))
