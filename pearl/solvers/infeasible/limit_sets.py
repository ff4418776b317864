"""Some of the limits of a problem, and whether a plan meets them, lane orders left out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError

MEMORY = "memory"

_MAPPINGS = ("variants", "devices", "pin")
NUMBERS = ("power_w", "period_s", "min_throughput_per_s")


@dataclass(frozen=True)
class Limit:
    """One thing that may be in the way. key: the key of `Limits`, or MEMORY for what devices have
    and limits allow. name: which entry of a mapping or of a list; empty for a number."""

    key: str
    name: str = ""


def all_limits(limits: Limits) -> Iterator[Limit]:
    """Every limit in force. What comes first is left out first, and so kept only where it must be:
    what a user can most easily change comes last."""
    yield from (Limit("together", f"{a}, {b}") for a, b in limits.together)
    for key in ("variants", "devices", "pin"):
        yield from (Limit(key, task) for task in getattr(limits, key))
    if limits.max_lanes is not None:
        yield Limit("max_lanes")
    yield Limit(MEMORY)
    for key in NUMBERS:
        if getattr(limits, key) is not None:
            yield Limit(key)


def keep_limits(problem: Problem, kept: Sequence[Limit]) -> tuple[Problem, frozenset[str]]:
    """The problem with these limits alone, and what `search_spaces` is to leave out."""
    limits = problem.limits
    names = {key: {k.name for k in kept if k.key == key} for key in (*_MAPPINGS, "together")}
    changed: dict[str, Any] = {
        key: {t: v for t, v in getattr(limits, key).items() if t in names[key]} for key in _MAPPINGS
    }
    changed["together"] = tuple(p for p in limits.together if ", ".join(p) in names["together"])
    numbers = {k.key for k in kept if not k.name}
    for key in ("max_lanes", *NUMBERS):
        if key not in numbers:
            changed[key] = None
    alone = replace(problem, limits=replace(limits, **changed))
    return alone, frozenset(() if MEMORY in numbers else (MEMORY,))


def is_feasible(problem: Problem, kept: Sequence[Limit], deadline: float) -> bool:
    """Whether some assignment meets these limits, lane orders left out."""
    alone, ignore = keep_limits(problem, kept)
    try:
        spaces = search_spaces(alone, ignore)
    except InfeasibleError:
        return False
    return any(least_s(p, alone, deadline) < math.inf for p in spaces)


def least_s(space: SearchSpace, problem: Problem, deadline: float) -> float:
    """The shortest period of a search space, lane orders left out; infinite if no assignment meets
    the limits. Raises OutOfTimeError."""
    problem = replace(problem, objective="throughput")
    left = deadline - time.monotonic()
    if left <= 0:
        raise OutOfTimeError
    _, assignment, finished = PeriodForm(space, problem, None).run(math.inf, left)
    if assignment is None:
        if not finished:
            raise OutOfTimeError
        return math.inf
    return cost_of(problem, assignment, build_timed_graph(assignment).order_bound_s)[0]
