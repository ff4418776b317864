"""Simple plans: upper bounds that scale a search, and the plan if a method found none in time.

A simple assignment gathers all classes on one device as far as possible, puts each class where it
is best, runs copies in parallel, or balances loads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import numpy as np

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.methods.greedy_replicas import place_replicas
from pearl.solvers.methods.relaxation_bounds import to_plan
from pearl.solvers.model.dag_instance import order_by_times
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import SearchSpace, cost_of, each_space
from pearl.solvers.model.tables import to_places
from pearl.solvers.model.traits import FEW, has_large
from pearl.solvers.orders.lane_sequencing import MANY, OrderResult, best_orders
from pearl.solvers.orders.list_orders import ring_period, shifted_orders
from pearl.time_limit import OutOfTimeError

TRIED = 3
"""Number of simple assignments that get orders (assumed)."""

TRYING = 0.3
"""Share of the time limit for finding and ordering simple assignments (assumed)."""

Taste = Callable[[Mode], float]


def read_seconds(m: Mode) -> float:
    return m.estimate.occupancy_s


def read_joules(m: Mode) -> float:
    return m.estimate.energy_j


def simple_plan(
    spaces: Sequence[tuple[float, SearchSpace]], problem: Problem, deadline: float
) -> Candidate | None:
    """Return the best of the simple plans; of equal ones that of least energy.

    spaces: with a lower bound on the cost of their plans, least bound first.
    """
    now = time.monotonic()
    until = now + TRYING * max(0.0, deadline - now)
    trials: list[tuple[float, float, int, Assignment]] = []
    for floor, space in spaces:
        if len(trials) >= TRIED and floor > sorted(trials)[TRIED - 1][0]:
            break
        for a in _simple(space, problem):
            if trials and time.monotonic() > until:
                break
            if not space.violates_coupling(a):
                bound_s = build_timed_graph(a).order_bound_s
                cost, _ = cost_of(problem, a, bound_s)
                if cost < math.inf:
                    trials.append((cost, a.energy_j(bound_s), len(trials), a))
    best: Candidate | None = None
    for least, _, _, a in sorted(trials, key=lambda t: t[:3])[:TRIED]:
        if best and (least >= best.cost * (1 - SAME) or time.monotonic() > until):
            break
        with suppress(OutOfTimeError):
            timed = build_timed_graph(a)
            effort = 0.1 if len(timed.names) < MANY else 0.0
            ordered = best_orders(timed, deadline=until, nodes=20, effort=effort)
            cost, paced = cost_of(problem, a, ordered.period_s)
            if cost < (best.cost if best else math.inf):
                best = Candidate(a, ordered, paced, cost)
    return best


def _simple(space: SearchSpace, problem: Problem) -> Iterator[Assignment]:
    yield from place_replicas(space)
    if len(space.classes) >= FEW and has_large():
        from pearl.solvers.large.starts import greedy, mended

        # early, as it is good and quick: time may end the others
        loads = to_places(space, problem)
        place = mended(loads, greedy(loads))
        if place is not None:
            yield loads.assignment(place)
    for a in chain(gather(space, read_seconds), gather(space, read_joules)):
        yield a
        yield spread(space, a)


def gather(space: SearchSpace, taste: Taste) -> Iterator[Assignment]:
    """Yield assignments to the first lanes of devices: all classes on one device, or each class
    where it is best by a taste; the best ones first. The largest classes are placed first, and a
    class that a device cannot hold is on its best one. Devices that are equal are tried once."""
    n = len(space.options)
    ways: list[dict[str, tuple[float, dict[int, Mode]]]] = []
    for members in space.classes:
        there: dict[str, tuple[float, dict[int, Mode]]] = {}
        for d in set.intersection(*(set(space.on_device[u]) for u in members)):
            best = {u: min(space.on_device[u][d], key=taste) for u in members}
            there[d] = sum(space.expansion.firings(u) * taste(m) for u, m in best.items()), best
        ways.append(dict(sorted(there.items(), key=lambda way: (way[1][0], way[0]))))
    largest = sorted(range(len(ways)), key=lambda c: -space.memory_bytes[c])
    ranked: dict[object, tuple[float, tuple[Mode, ...]]] = {}
    for favourite in [d.name for d in space.costs.platform.devices] + [""]:
        room, total, modes = dict(space.capacity_bytes), 0.0, dict[int, Mode]()
        for c in largest:
            size = space.memory_bytes[c]
            device = favourite if favourite in ways[c] and size <= room[favourite] else None
            device = device or next((d for d in ways[c] if size <= room[d]), None)
            if device is None:
                break
            room[device] -= size
            total += ways[c][device][0]
            modes |= ways[c][device][1]
        if len(modes) == n:
            chosen = tuple(modes[u] for u in range(n))
            alike = f"{total:.9e}", tuple((m.variant, m.width) for m in chosen)
            ranked.setdefault(alike, (total, chosen))
    for _, chosen in sorted(ranked.values(), key=lambda each: each[0]):
        yield Assignment(space.expansion, space.costs, chosen, (0,) * n)


def spread(space: SearchSpace, a: Assignment) -> Assignment:
    """Return the assignment with the units of each device on its lanes in turn."""
    used = dict.fromkeys(space.lanes, -1)
    lanes = []
    for m in a.modes:
        used[m.device] += 1
        lanes.append(used[m.device] % space.lanes[m.device])
    return replace(a, lanes=tuple(lanes))


def first_plan(problem: Problem) -> Candidate | None:
    """Return a plan in time proportional to the graph; None if none of the few assignments tried is
    within all limits.

    All tasks are on one device if possible, or loads are balanced, whatever is better. Lanes run
    their firings in the order of the program, shifted by whole iterations if no cycle joins tasks.

    Raises:
        SpecError: a name does not exist.
        OutOfTimeError: the time ran out.
    """
    if problem.objective == "makespan":
        problem = replace(problem, limits=problem.limits.without_slack())
    tastes = (read_seconds, read_joules)
    if problem.objective == "power_efficiency":
        tastes = tastes[::-1]
    for space in each_space(problem):
        if not isinstance(space, SearchSpace):
            continue
        x = space.expansion
        keys = [(f / x.firings(u), float(u), 0.0) for u, f in x.nodes]
        found: list[Candidate] = []
        for a in _balanced(space) if problem.objective == "throughput" else ():
            found += [c for c in [to_plan(_shifted(a, keys), problem)] if c]
        if found and found[0].period_s <= found[0].ordered.bound_s * (1 + SAME):
            return found[0]
        for a in chain.from_iterable(gather(space, taste) for taste in tastes):
            if not space.violates_coupling(a):
                serial = to_plan(order_by_times(a, keys, {}), problem)
                if serial:
                    found.append(serial)
                    break
        if found:
            return min(found, key=lambda c: c.cost)
    return None


def _shifted(a: Assignment, keys: list[tuple[float, float, float]]) -> Candidate:
    """Return an assignment with its lanes in the order of keys, shifted by whole iterations if that
    makes the period shorter."""
    found = order_by_times(a, keys, {})
    timed = build_timed_graph(a)
    shifted = shifted_orders(timed, found.ordered.orders)
    exact_s = ring_period(timed, shifted) if shifted else math.inf
    if not shifted or exact_s >= found.period_s:
        return found
    ordered = OrderResult(shifted, exact_s, found.ordered.bound_s)
    return replace(found, ordered=ordered, period_s=exact_s)


def _balanced(space: SearchSpace) -> Iterator[Assignment]:
    """Yield the one of two assignments with balanced loads whose largest load is less, if there is
    one: contiguous rows of classes, and the largest classes first."""
    if not has_large():
        return
    from pearl.solvers.large.starts import contiguous, greedy

    b = to_places(space, even=True)
    rows = next(contiguous(b, np.random.default_rng(0)), None)
    some = [b.assignment(place) for place in (rows, greedy(b)) if place is not None]
    some = [a for a in some if not space.violates_coupling(a)]
    yield from sorted(some, key=lambda a: max(a.loads_s.values()))[:1]
