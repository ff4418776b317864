"""Results of the modules of `pearl.solvers.large` on small seeded cases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.solver.instances import large, unrelated
from benchmarks.solver.loops import feedbacks, nested, pipeline, ring, small_cycles
from pearl.graph.limits import Limits
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl.planning.replicas import ReplicaSplit
from pearl.solvers.large import (
    annealing,
    load_annealing,
    load_bound,
    load_search,
    loop_moves,
    loop_search,
    split_selection,
    starts,
    timed_native,
)
from pearl.solvers.large.chain_bound import climb
from pearl.solvers.large.chain_program import ChainProgram, Prices
from pearl.solvers.large.greedy_replicas import place_replicas
from pearl.solvers.large.load_annealing import LoadProblem, greedy, to_load_problem
from pearl.solvers.large.load_bound import LoadProgram
from pearl.solvers.large.loop_search import LoopSearch
from pearl.solvers.large.loop_tables import scratch_of, to_tables
from pearl.solvers.model.method import STEADY
from pearl.solvers.model.search_space import SearchSpace, search_spaces
from pearl.testing.graphs import devices, mode, star
from pearl_devices import Link, Platform
from tests.graphs import act_and_learn, share_modes
from tests.solvers.kept import Clock, Kept, rounded, spaces_of

KEPT = Kept("kept_large.json")
MIXED = (29, 135, 141, 158, -26, -174)
BOTH = [((k + 1) % 6, k, 3) for k in range(6)] + [(k, (k + 1) % 6, 2 * (k == 5)) for k in range(6)]
LOOPS = {
    "ring": lambda: ring(1, 0.3, 4, tasks=12, devices=3),
    "pipeline": lambda: pipeline(1, 4, 3, 4, equal=False),
    "nested": lambda: nested(1, 0.3, 1, 4, rings=3, each=4, devices=3),
    "feedbacks": lambda: feedbacks(1, 0.3, tasks=14, backs=3, devices=3),
    "cycles": lambda: small_cycles(2),
    "acyclic": lambda: large(2, 1.0, tasks=14, devices=3),
    "free": lambda: large(3, 0.0, tasks=14, devices=3),
    "few": lambda: small_cycles(7),
    "short": lambda: ring(1, 0.3, 1, tasks=12, devices=3),
    "both": lambda: unrelated("both", 4, 0.5, 6, 3, lambda _: BOTH),
    "many": lambda: ring(2, 0.5, 3, tasks=40, devices=3),
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


@KEPT.case("ring", "pipeline", "nested", "feedbacks", "cycles", "both", *MIXED)
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


@KEPT.case("ring", "pipeline", "nested", "feedbacks", "cycles", "short", -174)
def loop_searches(name: Any) -> Any:
    search = LoopSearch(space(name), 1)
    search.run(0.02)
    best, found = search.best, search.orders()
    assert best is not None
    assert found is not None
    return best.period_s, best.place, best.rings, search._left, search._length, found[1:]


@KEPT.case("feedbacks", "few", "ring")
def loop_searches_of_few_swaps(name: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_search, "SWAPPED", 0.001)
        return loop_searches(name)


@KEPT.case("acyclic", 29)
def annealing_runs(name: Any) -> Any:
    """Runs under a clock that advances with each look, without and with a deadline."""
    found = []
    for seconds in (math.inf, 0.0625):
        with pytest.MonkeyPatch.context() as patch:
            clock = Clock(2.0**-13)
            patch.setattr(load_annealing, "time", clock)
            patch.setattr(load_annealing, "MOVES", 4)
            b = to_load_problem(space(name))
            start = greedy(b)
            assert start is not None
            search = load_annealing.Annealing(b, start, 1, clock.start_s + seconds, 1)
            search.run()
            found.append((search.best, search._moves_per_s, clock.now_s - clock.start_s))
    return found


@KEPT.case(("acyclic", 1), ("acyclic", 2), ("many", 1), (29, 1), ("pipeline", 2), ("free", 1))
def load_searches(given: tuple[Any, int]) -> Any:
    """Annealing in the foreground and the load program, under a clock that looks advance."""
    name, workers = given
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(0.125 if name == "acyclic" else 1024.0)
        for module in (load_annealing, load_bound, load_search):
            patch.setattr(module, "time", clock)
        patch.setattr(load_annealing, "MOVES", 1)
        patch.setattr(load_annealing.Annealing, "start", load_annealing.Annealing.run)
        patch.setattr(load_search, "COLUMNS", 90)
        of = space(name)
        search = load_search.LoadSearch(of, None, of.serial_s, 1, workers)
        search.run(clock.start_s + 2e6, clock.start_s + 1e6)
        places = [search.balance.place_of(a) for a in search.stop()]
        bound = rounded(search.bound.cost), search.bound.source
        runs = [s.seed for s in search._searches]
    rate = round(search.loads.per_s, 9)
    return bound, places, runs, search.small, search._whole, search._meshed, rate, search._best()


@KEPT.case()
def suited_searches() -> Any:
    """Which search spaces are annealed by loads, and which overlap."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_search, "FEW", 5)
        patch.setattr(load_search, "MANY", 8)
        for name in [*LOOPS, *MIXED]:
            s = space(name)
            for objective, watts in ((STEADY[0], None), (STEADY[1], None), (STEADY[0], 1.0)):
                problem = Problem(s.expansion.graph, s.costs, Limits(power_w=watts), objective)
                suits = load_search.applies_to, load_search.overlaps
                found.append([suit(s, problem) for suit in suits])
                capped = replace(s, max_lanes=2), replace(s, apart=((0, 1),))
                found.append([suit(c, problem) for c in capped for suit in suits])
            found.append(rounded(load_search.chained(s).cost))
    return found


@KEPT.case(2, 3)
def placed_replicas(copies: int) -> Any:
    """Copies of two tasks on two hosts, whose devices differ in what they run quickly."""
    near, far = devices("a", "b", lanes=1, width=1), devices("c", "d", lanes=1, width=1)
    places = *near, *(replace(d, host="n1") for d in far)
    links = [Link("a", d.name, 2e-6 * k, 1e9, 1e-7) for k, d in enumerate(places) if k]
    seconds = {"a": 3e-5, "b": 9e-6, "c": 2.5e-5, "d": 8e-6}
    modes: list[Mode] = []
    for d, s in seconds.items():
        for task, whole in (("act", s), ("learn", 3.2e-5 - s)):
            times = {n: whole * (0.3 + n / 8) for n in range(1, 9)}
            modes += share_modes(task, d, times, 8)
    costs = CostTable(Platform("two", places, tuple(links)), tuple(modes))
    limits = Limits(replicas=dict.fromkeys(("act", "learn"), copies))
    problem = Problem(act_and_learn(both=True), costs, limits)
    found = [list(place_replicas(s)) for s in search_spaces(problem)]
    return [([m.device for m in a.modes], a.lanes) for row in found for a in row]


@KEPT.case(2, 3, 4)
def selected_splits(copies: int) -> Any:
    """Choices of replicas, their bound, and the seconds of each choice."""
    places = *devices("a", "b", lanes=1, width=1), *devices("c", lanes=2, width=2)
    shares = {n: 1e-3 * (0.2 + n / 8) for n in range(1, 9)}
    modes = [*share_modes("act", "b", shares, 8), *share_modes("act", "c", shares, 8)]
    modes += [mode("act", "a", 3e-3), mode("learn", "a", 4e-4, occupancy=3e-4)]
    costs, limits = (
        CostTable(star(places, 1e-6, 1e9), tuple(modes)),
        Limits(replicas={"act": copies}),
    )
    problem = Problem(act_and_learn(), costs, limits)
    assert split_selection.select_splits(problem) is None
    seconds = split_selection.acting_s(costs)
    every = [ReplicaSplit(("act",), (4,) * n) for n in range(1, 6)]
    found: list[Any] = [split_selection.bound_s(problem), [seconds(s) for s in every]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_selection, "MOST", 3 * (1 + sum(range(2, copies + 1))) - 1)
        chosen = [split_selection.select_splits(problem)]
        for floor_s in (1e-3, seconds(every[1]), 2e-3, 9e-3):
            patch.setattr(split_selection, "bound_s", lambda _, floor_s=floor_s: floor_s)
            chosen.append(split_selection.select_splits(problem))
        for c in chosen:
            assert c is not None
            found.append((c.bound, [(s.tasks, s.shares) for s in c.splits]))
        energy = replace(problem, objective="power_efficiency")
        assert split_selection.select_splits(energy) is None
    return found


@pytest.mark.parametrize("name", KEPT.cases)
def test_results_are_those_that_are_kept(name: str, request: pytest.FixtureRequest) -> None:
    KEPT.check(name, request.config.getoption("--write"))
