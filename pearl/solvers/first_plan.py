"""A plan in time proportional to the graph, for use when a method found none in time.

Every task is on one device if possible. Each device has one lane, which runs the firings in the
order of the program: at any time, every task has completed the same share of an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment
from pearl.solvers.methods.relaxation_bounds import to_plan
from pearl.solvers.model.dag_instance import order_by_times
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, each_space


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
        for a in _gathered(space, problem.objective):
            found = to_plan(order_by_times(a, keys, {}), problem)
            if found:
                return found
    return None


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
