"""Irreducible infeasible sets: a smallest set of limits that no plan meets together.

The deletion filter (Chinneck and Dravnieks 1991) leaves out each limit in turn; if there is still
no plan, the limit stays out. The remaining limits conflict, and every proper subset of them can be
met. The feasibility test ignores lane orders.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pearl.errors import InfeasibleError
from pearl.graph.limits import ADDED, LIMITS, Limits
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.model.method import Search
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError, extended

SECONDS, LEAST_S = 5.0, 1.0
"""Longest search for a smallest conflict, in seconds, and the seconds that the search may take even
if the solver has used all its time (assumed: an answer without the reason helps little)."""

MEMORY = "memory"
NUMBERS = ("power", "period", "min_throughput")
COUPLED = ("together", "apart")
COUNTED = ("max_lanes", *(limit.key for limit in ADDED))
"""Keys of the limits that are the largest number of something in a plan."""

Entry = dict[str, Any]
"""An entry of `InfeasibleError.conflict`: kind, name, need, limit, unit."""


@dataclass(frozen=True)
class LimitPart:
    """A limit, or one entry of it, that may be part of a conflict.

    key: the key in `LIMITS`; MEMORY stands for the memory of the devices and the limits on it.
    name: the entry of a mapping or a list; empty for a number.
    """

    key: str
    name: str = ""


def all_limits(limits: Limits) -> Iterator[LimitPart]:
    """Yield every limit in force. The filter leaves out the first ones first."""
    for key, limit in LIMITS.items():
        if key == MEMORY:
            yield LimitPart(MEMORY)
        else:
            yield from (LimitPart(key, name) for name in limit.parts(limits))


def keep_limits(problem: Problem, chosen: Sequence[LimitPart]) -> tuple[Problem, frozenset[str]]:
    """Return the problem with only the chosen limits, and the `ignore` of `search_spaces`."""
    names = {key: [part.name for part in chosen if part.key == key] for key in LIMITS}
    changed: dict[str, Any] = {
        limit.field: limit.keep(problem.limits, names[key])
        for key, limit in LIMITS.items()
        if key != MEMORY
    }
    alone = replace(problem, limits=replace(problem.limits, **changed))
    return alone, frozenset(() if names[MEMORY] else (MEMORY,))


def is_feasible(problem: Problem, chosen: Sequence[LimitPart], deadline: float) -> bool:
    """Return whether some assignment meets the chosen limits, without lane orders."""
    alone, ignore = keep_limits(problem, chosen)
    try:
        spaces = search_spaces(alone, ignore)
    except InfeasibleError:
        return False
    return any(least_s(space, alone, deadline) < math.inf for space in spaces)


def least_s(space: SearchSpace, problem: Problem, deadline: float) -> float:
    """Return the shortest period of a search space in seconds, without lane orders; infinite if no
    assignment meets the limits.

    Raises:
        OutOfTimeError: the deadline (`time.monotonic()` seconds) passed before there was an answer.
    """
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


def find_conflict(problem: Problem, deadline: float) -> InfeasibleError:
    """Return the error for limits that no plan meets: a smallest conflicting set, with numbers.

    The search ends by the deadline (`time.monotonic()` seconds), or `LEAST_S` from now.

    Raises:
        OutOfTimeError: the time was too short for an answer.
    """
    deadline = _extend(deadline)
    with extended(deadline):
        conflicting, smallest = _filter_limits(problem, deadline)
        if conflicting:
            return _conflict_error(conflicting, smallest, problem, deadline)
        numbers = [k for k in all_limits(problem.limits) if k.key in NUMBERS]
        described = [_describe_limit(limit, numbers, problem, deadline) for limit in numbers]
    return InfeasibleError(
        f"graph {problem.graph.name!r}: some assignments meet the limits if lane orders are "
        "ignored, but none meets them with an order; allow a longer period or more power",
        [entry for _, entries in described for entry in entries],
    )


def add_conflict_set(error: InfeasibleError, problem: Problem, deadline: float) -> InfeasibleError:
    """Extend an error about one task, class of tasks or memory by the smallest conflicting set of
    limits, if that set names more limits."""
    kinds = {entry["kind"] for entry in error.conflict}
    if not kinds or kinds - {"task", "together", "memory"}:
        return error
    deadline = _extend(deadline)
    try:
        with extended(deadline):
            conflicting, smallest = _filter_limits(problem, deadline)
            if not conflicting:
                return error
            conflict_error = _conflict_error(conflicting, smallest, problem, deadline)
    except OutOfTimeError:
        return error
    if len(conflict_error.conflict) <= len(error.conflict):
        return error
    return InfeasibleError(f"{error}: {conflict_error}", conflict_error.conflict)


def no_plan_error(problem: Problem, search: Search) -> InfeasibleError:
    """Return the error of a method without a proof: no plan exists, or the method found none."""
    until = _extend(search.deadline)
    with suppress(OutOfTimeError), extended(until):
        if not is_feasible(problem, list(all_limits(problem.limits)), until):
            return find_conflict(problem, search.deadline)
    return InfeasibleError(
        f"method {search.method} found no plan of graph {problem.graph.name!r} within the limits, "
        "but did not prove that there is none: give more time, use method 'milp', or relax a limit"
    )


def _extend(deadline: float) -> float:
    now = time.monotonic()
    return now + min(SECONDS, max(LEAST_S, deadline - now))


def _filter_limits(problem: Problem, deadline: float) -> tuple[list[LimitPart], bool]:
    """Return a set of limits that conflict, and whether every subset of it can be met."""
    conflicting = list(all_limits(problem.limits))
    smallest = True
    try:
        if is_feasible(problem, conflicting, deadline):
            return [], True
    except OutOfTimeError:
        return conflicting, False
    for limit in list(conflicting):
        rest = [k for k in conflicting if k != limit]
        try:
            if not is_feasible(problem, rest, deadline):
                conflicting = rest
        except OutOfTimeError:
            smallest = False
    return conflicting, smallest


def _conflict_error(
    conflicting: Sequence[LimitPart], smallest: bool, problem: Problem, deadline: float
) -> InfeasibleError:
    """Return the error that names the conflicting limits."""
    described = [_describe_limit(limit, conflicting, problem, deadline) for limit in conflicting]
    message = "no plan " + ", and ".join(text for text, _ in described)
    if len(conflicting) > 1:
        message += ": " + (
            "without any one of these there would be a plan for the others"
            if smallest
            else "relax at least one of these"
        )
    return InfeasibleError(message, [entry for _, entries in described for entry in entries])


def _shortest_s(problem: Problem, chosen: Sequence[LimitPart], deadline: float) -> float | None:
    """Return the shortest period under the chosen limits; None if the time ran out."""
    alone, ignore = keep_limits(problem, chosen)
    try:
        spaces = search_spaces(alone, ignore)
        return min(least_s(space, alone, deadline) for space in spaces)
    except (OutOfTimeError, InfeasibleError):
        return None


def _entry(kind: str, name: str, need: float | None, limit: float | None, unit: str) -> Entry:
    return {"kind": kind, "name": name, "need": need, "limit": limit, "unit": unit}


def _describe_limit(
    limit: LimitPart, conflicting: Sequence[LimitPart], problem: Problem, deadline: float
) -> tuple[str, list[Entry]]:
    """Return one limit of a conflict in words, with the value that would be enough, and its
    entries of `InfeasibleError.conflict`."""
    graph, noun = problem.graph, LIMITS[limit.key]
    rest = [k for k in conflicting if k != limit]
    if limit.key == MEMORY:
        return _describe_memory(problem, conflicting)
    value = noun.parts(problem.limits)[limit.name]
    text = noun.sentence(limit.name, value)
    need: float | None = None
    if limit.key in ("period", "min_throughput"):
        others = [k for k in rest if k.key == "power" or k.key not in NUMBERS]
        best = _shortest_s(problem, others, deadline)
        if limit.key == "period":
            if best is not None and best < math.inf:
                text += f"; the shortest reachable is at least {best:.6g} s"
            return text, [_entry(noun.kind, graph.name, best, value, noun.unit)]
        unit = "env steps/s" if graph.env_steps else "iterations/s"
        reachable = (graph.env_steps or 1) / best if best else None
        text += f" {unit}"
        if reachable is not None:
            text += f"; the best reachable is at most {reachable:.6g}"
        return text, [_entry(noun.kind, graph.name, value, reachable, unit)]
    if limit.key == "power":
        need = always = sum(problem.costs.platform.idle_w().values())
        if always >= value:
            text += f": devices that are always on draw {always:.6g} W doing nothing"
        else:
            need = _least_power_w(problem, rest, deadline)
            text += f": about {need:.4g} W would be enough" if need is not None else ""
        return text, [_entry(noun.kind, graph.name, need, value, noun.unit)]
    if limit.key in COUNTED:
        need = _least_number(limit, problem, rest, deadline)
        text += f"; {need} would be enough" if need else ""
        return text, [_entry(noun.kind, graph.name, need, value, noun.unit)]
    if limit.key in COUPLED:
        need = 1 if limit.key == "together" else 2
        return text, [_entry(noun.kind, limit.name, need, need - 1, noun.unit)]
    return text, [_entry(noun.kind, limit.name, None, None, "")]


def _least_number(
    limit: LimitPart, problem: Problem, rest: Sequence[LimitPart], deadline: float
) -> float | None:
    """Return the least value of a limit on a number with which the other limits can be met; None if
    none was found."""
    limits, field = problem.limits, LIMITS[limit.key].field
    most = sum(d.max_lanes for d in problem.costs.platform.devices) + len(problem.graph.tasks)
    given = getattr(limits, field)
    for value in range(given + 1, given + most):
        changed: dict[str, Any] = {field: value}
        wider = replace(problem, limits=replace(limits, **changed))
        try:
            if is_feasible(wider, [*rest, limit], deadline):
                return value
        except OutOfTimeError:
            return None
    return None


def _least_power_w(problem: Problem, rest: Sequence[LimitPart], deadline: float) -> float | None:
    """Return the least power cap, to a thousandth, with which the other limits can be met; None if
    the time ran out."""
    cap = problem.limits.power_w or 0.0
    low, high = cap, 2 * cap + sum(d.waiting_power_w for d in problem.costs.platform.devices)

    def is_enough(power_w: float) -> bool:
        capped = replace(problem, limits=replace(problem.limits, power_w=power_w))
        return is_feasible(capped, [*rest, LimitPart("power")], deadline)

    try:
        while not is_enough(high):
            low, high = high, 4 * high
            if high > 1e12:
                return None
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
    except OutOfTimeError:
        return None
    return high


def _describe_memory(problem: Problem, conflicting: Sequence[LimitPart]) -> tuple[str, list[Entry]]:
    """Return the memory that all tasks need, the memory of the devices, and the largest class;
    without numbers if the time runs out."""
    alone, _ = keep_limits(problem, [k for k in conflicting if k.key != MEMORY])
    try:
        space = search_spaces(alone, frozenset({MEMORY}))[0]
    except OutOfTimeError:
        return "fits into memory", [_entry("memory", problem.graph.name, None, None, "bytes")]
    total = sum(space.memory_bytes)
    used = sorted({m.device for modes in space.options for m in modes})
    platform, limits = problem.costs.platform, problem.limits
    capacity = {
        d: min(platform.device(d).memory_bytes, limits.memory_bytes.get(d, math.inf)) for d in used
    }
    entries = [_entry("memory", d, total, size, "bytes") for d, size in capacity.items()]
    crowded = []
    for d in used:
        room = platform.device(d).unit_memory_bytes
        kept = sum(
            min(space.bytes_on_unit(u, m) for m in modes) for u, modes in enumerate(space.options)
        )
        if room < math.inf and kept > 0:
            crowded.append(
                f"memory of a unit of {d} is {room:.3g} bytes, and all tasks on one lane need at "
                f"least {kept:.3g} bytes on each unit"
            )
            entries.append(_entry("memory", d, kept, room, "bytes"))
    if crowded and total <= min(capacity.values()):
        return f"fits into memory: {'; '.join(crowded)}", entries[len(capacity) :]
    largest = max(range(len(space.classes)), key=lambda c: space.memory_bytes[c])
    names = {t for u in space.classes[largest] for t in space.expansion.units[u]}
    channels = sum(space.read_bytes)
    held = f" (channels hold {channels:.3g} bytes of them at least)" if channels else ""
    text = (
        f"fits into memory: all tasks together need {total:.3g} bytes{held} and the limits are "
        f"{', '.join(f'{d} {size:.3g} bytes' for d, size in capacity.items())}; the largest share "
        f"is {', '.join(sorted(names))} with {space.memory_bytes[largest]:.3g} bytes"
    )
    return "; ".join([text, *crowded]), entries
