"""Traits of a search space that decide which searches suit it."""

from __future__ import annotations

import math

from pearl.errors import SpecError
from pearl.graph.period import topological
from pearl.planning.problem import Problem
from pearl.solvers.model.search_space import SearchSpace
from pearl_devices.rooms import absence_text, has_room

LARGE = "pearl.solvers.large"
"""The room of searches for many tasks, which an installation may leave out."""

MANY, FEW = 40, 16
"""Number of classes from which annealing by loads repays loading its compiled code (assumed): with
cycles between tasks, and without, so that loads alone bound the period."""

LOOPS = 6
"""Number of firings from which the search of graphs with cycles is tried. For fewer, the period
form proves the best plan at once (assumed)."""

EVERY = 20_000
"""Largest number of assignments that are all valued: those of 9 classes on 3 lanes take 20
CPU-milliseconds."""

FIRST = 0.1
"""Share of the time limit for annealing before the period form starts (assumed)."""


def has_large() -> bool:
    """Return whether the searches for many tasks are in this installation."""
    return has_room(LARGE)


def require_large(tasks: int) -> None:
    """Refuse a search space of so many tasks without the searches for them.

    Raises:
        SpecError: the room is left out.
    """
    if not has_large():
        raise SpecError(f"{absence_text(f'method milp, for {tasks} tasks,', LARGE)}")


def applies_to(space: SearchSpace, problem: Problem) -> bool:
    """Return whether annealing of loads suits a search space: many tasks, some with a choice of
    lane. It knows no limit but memory: what breaks another one is a start of `loop_search`."""
    return (
        problem.objective == "throughput"
        and not space.rules
        and _has_choice(space)
        and len(space.classes) >= FEW
        and (len(space.classes) >= MANY or is_acyclic(space))
    )


def overlaps(space: SearchSpace, problem: Problem) -> bool:
    """Return whether the value of an assignment depends on more than loads: on its orders around
    cycles, on energy, or on rules that couple lanes (`loop_search`). The search does not know
    the rules of further limits: the period form has all of the time then."""
    return (
        len(space.expansion.nodes) >= LOOPS
        and not space.rules
        and _has_choice(space)
        and (is_coupled(space, problem) or not is_acyclic(space))
    )


def is_coupled(space: SearchSpace, problem: Problem) -> bool:
    """Return whether rules other than memory couple the lanes, or energy counts."""
    return (
        problem.objective != "throughput"
        or problem.limits.power_w is not None
        or space.max_lanes < math.inf
        or space.lanes_couple
    )


def _has_choice(space: SearchSpace) -> bool:
    return any(len(o) > 1 or space.lanes[o[0].device] > 1 for o in space.options)


def is_pooled(space: SearchSpace) -> bool:
    """Return whether some modes are wider than an even share of their device."""
    platform = space.costs.platform
    share = {d.name: d.width // space.lanes[d.name] for d in platform.devices}
    return any(m.width > share[m.device] for options in space.options for m in options)


def complete(space: SearchSpace, problem: Problem) -> bool:
    """Return whether a search space has so few assignments that each can be valued, and all of them
    are lanes of its classes: one mode on each device that suits all of its lanes, no pair term, and
    no rule but memory that couples lanes."""
    several = [d for d, n in space.lanes.items() if n > 1]
    used, classes = {m.device for o in space.options for m in o}, len(space.classes)
    return (
        not is_coupled(space, problem)
        and sum(min(space.lanes[d], classes) for d in used) ** classes <= EVERY
        and not is_pooled(space)
        and not space.pair_terms
        and all(len(here) == 1 for unit in space.on_device for here in unit.values())
        and not (several and any(len(members) > 1 for members in space.classes))
    )


def is_acyclic(space: SearchSpace) -> bool:
    """Return whether no cycle joins two tasks, so that only loads bound the period."""
    tasks = {t.name: k for k, t in enumerate(space.expansion.graph.tasks)}
    edges = space.expansion.graph.edges
    flow = [(tasks[e.src], tasks[e.dst]) for e in edges if e.src != e.dst]
    return len(topological(len(tasks), flow)) == len(tasks)
