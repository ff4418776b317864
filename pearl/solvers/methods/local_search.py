"""Local search: better modes, lanes and orders step by step, from the best simple plan.

The method uses simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) over the mode and lane of
every task and, for makespan, the order in which firings are placed. It starts from the best of
HEFT, PEFT and all on one device. Large makespan problems whose tasks fire once use tabu search
instead (`tabu`). Large throughput problems are annealed by loads (`load_annealing`). Two calls with
one seed give the same plan unless time runs out.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.large.load_annealing import Annealing
from pearl.solvers.large.load_search import applies_to
from pearl.solvers.large.starts import greedy
from pearl.solvers.large.tables import to_places
from pearl.solvers.methods.first_schedule import initial_schedule, start_in
from pearl.solvers.methods.moves import accept, build_assignment, groups_of, places_of, random_move
from pearl.solvers.methods.relaxation_bounds import bound, open_spaces, to_plan
from pearl.solvers.model.dag_instance import (
    DagInstance,
    build_instance,
    order_by_times,
    start_times_s,
)
from pearl.solvers.model.list_schedule import Place, build_schedule
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, without_numbers
from pearl.solvers.orders.lane_sequencing import best_orders
from pearl.time_limit import OutOfTimeError

MOVES = 3_000
"""Largest number of moves of annealing, for each choice of fusions and slack."""

TABU_MOVES = 60_000
"""Largest number of moves of tabu search."""

LARGE = 30
"""Number of firings from which tabu search repays loading its compiled code."""

EXACT = 60
"""Number of firings from which the loads of lanes and links replace the bound over all orders,
which takes 10 ms and more, if loads suit the search space (`load_search.applies_to`)."""

RUNS = 1
"""Number of whole runs of annealing by loads."""

SHARE = 0.7
"""Share of the remaining time for moves by loads; lane orders take the rest."""

KEPT = 4
"""Number of assignments of least order bound whose lane orders are searched at the end."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return the best plan found, with a bound from a relaxation.

    Raises:
        InfeasibleError: no plan is within the limits, or the search found none.
        OutOfTimeError: the time ran out before the first plan.
    """
    deadline = search.deadline
    spaces = open_spaces(problem)
    best: Candidate | None = None
    timed_out = False
    for number, space in enumerate(spaces):
        left = deadline - time.monotonic()
        if left <= 0 and best:
            break
        until = time.monotonic() + left / (len(spaces) - number)
        candidate: Candidate | None = None
        try:
            it = build_instance(space)
            first = initial_schedule(it, problem, until)
            candidate, begun = to_plan(first, problem), start_in(space, search)
            if begun and (candidate is None or begun.cost < candidate.cost):
                first = candidate = begun
            if first is None:
                continue
            candidate = improve(it, first, problem, until, search.seed)
        except OutOfTimeError:
            if best is None and candidate is None:
                raise
            timed_out = True
        if candidate and (best is None or candidate.cost < best.cost):
            best = candidate
            search.offer(best)
    if best is None:
        raise no_plan_error(problem, search)
    timed_out = timed_out or time.monotonic() > deadline
    least = bound(spaces, problem, best, deadline)
    return Outcome(best, least.cost, timed_out, least.source)


def improve(
    it: DagInstance,
    first: Candidate,
    problem: Problem,
    deadline: float,
    seed: int,
    *,
    enough: float = 0.0,
) -> Candidate | None:
    """Return the best plan that the search reaches from `first`; None if none is within the limits.
    For makespan, the search may stop at `enough` seconds."""
    if problem.objective == "makespan":
        lanes = plain_lanes(it)
        if lanes and len(it.order) >= LARGE:
            return tabu_search(it, lanes, first, TABU_MOVES, enough, deadline, seed)
        return _anneal_schedule(it, first, deadline, seed)
    if len(it.order) > EXACT and applies_to(it.space, problem):
        best_places = [_anneal_loads(it.space, first, deadline, seed)]
    else:
        best_places = _anneal_steady(it.space, first, problem, deadline, seed)
    return _ordered(it.space, best_places, first, problem, deadline)


def plain_lanes(it: DagInstance) -> list[tuple[str, int]]:
    """Return device and number of every lane if tabu search supports the search space, else
    nothing.

    Tabu search supports spaces in which each unit fires once and no class, memory, width, limit on
    lanes, pair term or busy link couples units.
    """
    p = it.space
    total: dict[str, float] = dict.fromkeys(p.capacity_bytes, 0.0)
    for members, size in zip(p.classes, p.memory_bytes, strict=True):
        for d in {m.device for u in members for m in p.options[u]}:
            total[d] += size
    used = [d.name for d in p.costs.platform.devices if any(d.name in row for row in it.devices)]
    lanes = {d: min(p.lanes[d], len(p.options)) for d in used}
    plain = (
        len(it.order) == len(p.options)
        and all(len(members) == 1 for members in p.classes)
        and all(total[d] <= p.capacity_bytes[d] for d in total)
        and len(plain_widths(p)) == len(used)
        and not p.costs.pair_extra_s
        and not p.lanes_couple
        and not any(link.paid_by == "link" for link in p.costs.platform.links)
    )
    return [(d, k) for d in lanes for k in range(lanes[d])] if plain else []


def plain_widths(p: SearchSpace) -> list[str]:
    """Return the devices on which every lane may have the width of its widest mode, in a search
    space without a limit on the number of all lanes."""
    used = dict.fromkeys(m.device for o in p.options for m in o)
    widest = {d: max(m.width for o in p.options for m in o if m.device == d) for d in used}
    if p.max_lanes < math.inf:
        return []
    return [
        d
        for d in used
        if widest[d] * min(p.lanes[d], len(p.options)) <= p.costs.platform.device(d).width
    ]


def tabu_search(
    it: DagInstance,
    lanes: list[tuple[str, int]],
    first: Candidate,
    moves: int,
    enough: float,
    deadline: float,
    seed: int,
) -> Candidate:
    """Run tabu search from a schedule to a makespan of `enough` seconds, `moves` or the
    deadline."""
    import numpy as np

    from pearl.solvers.methods import tabu

    p, n = it.space, len(it.order)
    s = tabu.build_arrays(it, lanes)
    ways = [tabu.alternatives(p.options[u], lanes) for u in it.unit]
    taken = places_of(p, first.assignment)
    way = np.array([s.first[v] + ways[v].index(taken[u]) for v, u in enumerate(it.unit)])
    begin = np.array(start_times_s(build_timed_graph(first.assignment), first.ordered.orders)[:n])
    search = tabu.TabuSearch(s, way, begin, seed)
    search.run(moves, deadline, enough * (1 + 1e-9))
    start = [float(t) for t in search.best_start]
    busy = [float(t) for t in s.occupancy[search.best_way]]
    keys = [(start[v], start[v] + busy[v], float(it.place[v])) for v in range(n)]
    places: list[Place] = [(0, 0)] * n
    for v, u in enumerate(it.unit):
        places[u] = ways[v][int(search.best_way[v] - s.first[v])]
    return min(first, order_by_times(build_assignment(p, places), keys, {}), key=lambda f: f.cost)


def _anneal_schedule(it: DagInstance, first: Candidate, deadline: float, seed: int) -> Candidate:
    """Anneal places and the order of placing for makespan; each candidate is built and timed."""
    p, r, group = it.space, random.Random(seed), groups_of(it.space)
    places = places_of(p, first.assignment)
    begin = start_times_s(build_timed_graph(first.assignment), first.ordered.orders)
    priority = [begin[v] for v in range(len(it.order))]
    best = value = first.cost
    best_found = first
    for move in range(MOVES):
        if time.monotonic() > deadline:
            break
        heat = 0.05 * best_found.cost * (1 - move / MOVES) ** 2
        new_priority = priority
        new = places
        if r.random() < 0.5:
            new_priority = priority[:]
            v = r.randrange(len(priority))
            new_priority[v] = priority[r.randrange(len(priority))] + r.uniform(-1e-3, 1e-3) * value
        else:
            new = random_move(p, places, group, r) or places
            if new is places:
                continue
        made = build_schedule(it, new_priority, new)
        cost = made.end_s()
        if accept(r, value, cost, heat):
            places, priority, value = new, new_priority, cost
            if cost < best * (1 - SAME):
                candidate = made.to_candidate()
                if candidate and candidate.cost < best_found.cost:
                    best_found = candidate
                best = cost
    return best_found


def _anneal_steady(
    p: SearchSpace, first: Candidate, problem: Problem, deadline: float, seed: int
) -> list[list[Place]]:
    """Return the best few places for throughput or power efficiency, by the bound over all
    orders."""
    r, group = random.Random(seed), groups_of(p)
    free = without_numbers(problem)

    def score(a: Assignment) -> float:
        period = build_timed_graph(a).order_bound_s
        cost, _ = cost_of(problem, a, period)
        if cost < math.inf:
            return cost
        return 1e3 * cost_of(free, a, period)[0]

    places = places_of(p, first.assignment)
    value = score(first.assignment)
    best_costs: dict[tuple[Place, ...], float] = {tuple(places): value}
    costs = dict(best_costs)
    for move in range(MOVES):
        if time.monotonic() > deadline - 0.2 * max(0.0, deadline - time.monotonic()):
            break
        new = random_move(p, places, group, r)
        if new is None:
            continue
        key = tuple(new)
        if key not in costs:
            if time.monotonic() > deadline:
                break
            costs[key] = score(build_assignment(p, new))
        cost = costs[key]
        if accept(r, value, cost, 0.1 * min(best_costs.values()) * (1 - move / MOVES) ** 2):
            places, value = new, cost
            if key not in best_costs:
                best_costs[key] = cost
                if len(best_costs) > KEPT:
                    del best_costs[max(best_costs, key=lambda k: best_costs[k])]
    return [list(key) for key, _ in sorted(best_costs.items(), key=lambda item: item[1])]


def _anneal_loads(p: SearchSpace, first: Candidate, deadline: float, seed: int) -> list[Place]:
    """Anneal places by the loads of lanes and links."""
    b = to_places(p, even=True)
    start = b.place_of(first.assignment)
    if start is None:
        start = greedy(b)
    if start is None:
        return places_of(p, first.assignment)
    now = time.monotonic()
    search = Annealing(b, start, seed, now + SHARE * (deadline - now), runs=RUNS)
    search.run()
    return places_of(p, b.assignment(search.best[1]))


def _ordered(
    p: SearchSpace,
    candidates: Sequence[Sequence[Place]],
    first: Candidate,
    problem: Problem,
    deadline: float,
) -> Candidate | None:
    """Return the best plan of some places after a search of lane orders, least bound first; or
    `first`."""
    best = to_plan(first, problem)
    for places in candidates:
        a = build_assignment(p, places)
        if p.violates_coupling(a):
            continue
        timed = build_timed_graph(a)
        least, _ = cost_of(problem, a, timed.order_bound_s)
        if best and least >= best.cost * (1 - SAME):
            continue
        ordered = best_orders(timed, deadline=deadline)
        cost, paced = cost_of(problem, a, ordered.period_s)
        if cost < (best.cost if best else math.inf):
            best = Candidate(a, ordered, paced, cost)
    return best
