"""A plan in time proportional to the graph, for use when a method found none in time.

Every task is on one device if possible, or loads are balanced, whatever is better. Lanes run their
firings in the order of the program, shifted by whole iterations if no cycle joins tasks. For
makespan and energy, every task is on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.large.starts import contiguous, greedy
from pearl.solvers.large.tables import to_places
from pearl.solvers.methods.relaxation_bounds import to_plan
from pearl.solvers.model.dag_instance import order_by_times
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import SearchSpace, each_space
from pearl.solvers.orders.lane_sequencing import OrderResult
from pearl.solvers.orders.list_orders import ring_period, shifted_orders


def first_plan(problem: Problem) -> Candidate | None:
    """Return a plan within all limits; None if none of the few assignments tried is within them.

    Raises:
        SpecError: a name does not exist.
        OutOfTimeError: the time ran out.
    """
    if problem.objective == "makespan":
        problem = replace(problem, limits=problem.limits.without_slack())
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
        for a in _gathered(space, problem.objective):
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
    return replace(
        found, ordered=OrderResult(shifted, exact_s, found.ordered.bound_s), period_s=exact_s
    )


def _balanced(space: SearchSpace) -> Iterator[Assignment]:
    """Yield the one of two assignments with balanced loads whose largest load is less, if there is
    one: contiguous rows of classes, and the largest classes first."""
    b = to_places(space, even=True)
    rows = next(contiguous(b, np.random.default_rng(0)), None)
    some = [b.assignment(place) for place in (rows, greedy(b)) if place is not None]
    some = [a for a in some if not space.violates_coupling(a)]
    yield from sorted(some, key=lambda a: max(a.loads_s.values()))[:1]


def _seconds(m: Mode) -> float:
    return m.estimate.occupancy_s


def _joules(m: Mode) -> float:
    return m.estimate.energy_j


def _gathered(space: SearchSpace, objective: str) -> Iterator[Assignment]:
    """Yield assignments that gather every class on one device, the least loaded result first.

    A class that the device cannot hold is on its quickest or most frugal device.
    """
    tastes = (_joules, _seconds) if objective == "power_efficiency" else (_seconds, _joules)
    for taste in tastes:
        ranked: list[tuple[float, int, Assignment]] = []
        for device in [d.name for d in space.costs.platform.devices]:
            modes = _place(space, device, taste)
            if modes is None:
                continue
            a = Assignment(space.expansion, space.costs, modes, (0,) * len(modes))
            worth = sum(space.expansion.firings(u) * taste(m) for u, m in enumerate(modes))
            ranked.append((worth, len(ranked), a))
        ranked.sort(key=lambda each: each[:2])
        yield from (a for _, _, a in ranked if not space.violates_coupling(a))


def _place(
    space: SearchSpace, favourite: str, taste: Callable[[Mode], float]
) -> tuple[Mode, ...] | None:
    """Return the mode of each unit; None if no device has room for a class."""
    room = dict(space.capacity_bytes)
    modes: dict[int, Mode] = {}
    sizes = list(zip(space.classes, space.memory_bytes, strict=True))
    for members, size in sorted(sizes, key=lambda c: -c[1]):  # largest class first
        best: dict[str, tuple[float, list[Mode]]] = {}
        for device in set.intersection(*(set(space.on_device[u]) for u in members)):
            if size > room[device]:
                continue
            chosen = [min(space.on_device[u][device], key=taste) for u in members]
            cost = sum(
                space.expansion.firings(u) * taste(m) for u, m in zip(members, chosen, strict=True)
            )
            best[device] = cost, chosen
        if not best:
            return None
        device = favourite if favourite in best else min(best, key=lambda d: (best[d][0], d))
        room[device] -= size
        modes.update(zip(members, best[device][1], strict=True))
    return tuple(modes[u] for u in range(len(space.options)))
