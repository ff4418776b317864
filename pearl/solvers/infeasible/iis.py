"""Irreducible infeasible sets: a smallest set of limits that no plan meets together.

Deletion filter (Chinneck and Dravnieks 1991): each limit is left out in turn, and stays out where
there is still no plan. What remains conflicts, and every proper part of it can be met.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem
from pearl.solvers.infeasible.limit_sets import (
    MEMORY,
    NUMBERS,
    Limit,
    all_limits,
    is_feasible,
    keep_limits,
    least_s,
)
from pearl.solvers.model.method import Search
from pearl.solvers.model.search_space import search_spaces
from pearl.time_limit import OutOfTimeError, extended

SECONDS, LEAST_S = 5.0, 1.0
"""Seconds that the search for a smallest conflict takes at most, and seconds that it may take even
where the solver has used all its time (assumed: an answer without the reason is worth little)."""


def find_conflict(problem: Problem, deadline: float) -> InfeasibleError:
    """The error for limits that no plan meets: a smallest conflicting set, with numbers.

    It is found by the caller's deadline (`time.monotonic()` seconds) but for `LEAST_S`;
    OutOfTimeError where that is not enough to say anything.
    """
    deadline = _until(deadline)
    with extended(deadline):
        conflicting, smallest = _filter_limits(problem, deadline)
        if conflicting:
            return _error(conflicting, smallest, problem, deadline)
        conflict: list[dict[str, Any]] = []
        numbers = [k for k in all_limits(problem.limits) if k.key in NUMBERS]
        for limit in numbers:
            conflict += _describe_limit(limit, numbers, problem, deadline)[1]
    return InfeasibleError(
        f"graph {problem.graph.name!r}: some assignments would meet the limits if their lanes "
        "needed no order, but none does with one; allow a longer period or more power",
        conflict,
    )


def add_conflict_set(error: InfeasibleError, problem: Problem, deadline: float) -> InfeasibleError:
    """An error about one task, class of tasks or memory, together with the smallest conflicting set
    of limits behind it, where that names more."""
    kinds = [entry["kind"] for entry in error.conflict]
    if not kinds or set(kinds) - {"task", "together", "memory"}:
        return error
    deadline = _until(deadline)
    try:
        with extended(deadline):
            conflicting, smallest = _filter_limits(problem, deadline)
            if not conflicting:
                return error
            conflict_error = _error(conflicting, smallest, problem, deadline)
    except OutOfTimeError:
        return error
    if len(conflict_error.conflict) <= len(error.conflict):
        return error
    return InfeasibleError(f"{error}: {conflict_error}", conflict_error.conflict)


def _error(
    conflicting: Sequence[Limit],
    smallest: bool,
    problem: Problem,
    deadline: float,
) -> InfeasibleError:
    """The error that names these limits."""
    parts: list[str] = []
    conflict: list[dict[str, Any]] = []
    for limit in conflicting:
        text, entries = _describe_limit(limit, conflicting, problem, deadline)
        parts.append(text)
        conflict += entries
    if len(conflicting) == 1:
        message = f"no plan {parts[0]}"
    else:
        message = f"no plan {', and '.join(parts)}: " + (
            "without any one of these there would be a plan for the others"
            if smallest
            else "one of these has to give"
        )
    return InfeasibleError(message, conflict)


def no_plan_error(problem: Problem, search: Search) -> InfeasibleError:
    """The error of a method without a proof: no plan exists, or the method found none."""
    until = _until(search.deadline)
    with suppress(OutOfTimeError), extended(until):
        if not is_feasible(problem, list(all_limits(problem.limits)), until):
            return find_conflict(problem, search.deadline)
    return InfeasibleError(
        f"method {search.method} found no plan of graph {problem.graph.name!r} that meets the "
        "limits; whether there is one is not decided: give more time, use method 'milp', or relax "
        "a limit"
    )


def _until(deadline: float) -> float:
    now = time.monotonic()
    return now + min(SECONDS, max(LEAST_S, deadline - now))


def _filter_limits(problem: Problem, deadline: float) -> tuple[list[Limit], bool]:
    """A set of limits that conflict, and whether every part of it can be met."""
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


def _shortest_s(problem: Problem, limits: Sequence[Limit], deadline: float) -> float | None:
    """The shortest period under these limits; None if there was no time to find it."""
    alone, ignore = keep_limits(problem, limits)
    try:
        spaces = search_spaces(alone, ignore)
        return min(least_s(space, alone, deadline) for space in spaces)
    except (OutOfTimeError, InfeasibleError):
        return None


def _describe_limit(
    limit: Limit,
    conflicting: Sequence[Limit],
    problem: Problem,
    deadline: float,
) -> tuple[str, list[dict[str, Any]]]:
    """One limit of the conflict in words, with what would do without it, and as entries."""
    graph, costs, limits = problem.graph, problem.costs, problem.limits
    rest = [k for k in conflicting if k != limit]
    rate = "env steps/s" if graph.env_steps else "iterations/s"

    def entry(
        kind: str, name: str, need: float | None, at: float | None, unit: str
    ) -> list[dict[str, Any]]:
        return [{"kind": kind, "name": name, "need": need, "limit": at, "unit": unit}]

    if limit.key in ("period_s", "min_throughput_per_s"):
        others = [k for k in rest if k.key not in NUMBERS[1:]]
        best = _shortest_s(problem, others, deadline)
        if limit.key == "period_s":
            limit_value = limits.period_s or 0.0
            text = f"meets period {limit_value:.6g} s"
            if best is not None and best < math.inf:
                text += f"; the shortest reachable is at least {best:.6g} s"
            return text, entry("period", graph.name, best, limit_value, "s")
        limit_value = limits.min_throughput_per_s or 0.0
        reachable = (graph.env_steps or 1) / best if best else None
        text = f"meets min_throughput {limit_value:.6g} {rate}"
        if reachable is not None:
            text += f"; the best reachable is at most {reachable:.6g}"
        return text, entry("min_throughput", graph.name, limit_value, reachable, rate)
    if limit.key == "power_w":
        cap = limits.power_w or 0.0
        always = sum(costs.platform.idle_w().values())
        text = f"stays within the power limit of {cap:.6g} W"
        if always >= cap:
            need: float | None = always
            text += f": devices that are always on draw {always:.6g} W doing nothing"
        else:
            need = _least_power_w(problem, rest, deadline)
            text += f": about {need:.4g} W would do" if need is not None else ""
        return text, entry("power", graph.name, need, cap, "W")
    if limit.key == MEMORY:
        return _memory(problem, conflicting)
    if limit.key == "max_lanes":
        most = limits.max_lanes
        text = f"has at most {most} lane{'' if most == 1 else 's'} (max_lanes)"
        fewest = _fewest_lanes(problem, rest, deadline)
        text += f"; {fewest} would do" if fewest else ""
        return text, entry("lanes", graph.name, fewest, limits.max_lanes, "lanes")
    if limit.key == "together":
        text = f"puts {limit.name} on one device (together)"
        return text, entry("together", limit.name, 1, 0, "devices")
    value = getattr(limits, limit.key)[limit.name]
    shown = value if isinstance(value, str) else ", ".join(value)
    word = {"pin": "pinned to", "devices": "allowed only on", "variants": "allowed only as"}
    text = f"has {limit.name} {word[limit.key]} {shown or 'nothing'}"
    return text, entry(limit.key, limit.name, None, None, "")


def _fewest_lanes(problem: Problem, rest: Sequence[Limit], deadline: float) -> float | None:
    """The least max_lanes with which the other limits can be met; None if it was not found."""
    limits, most = problem.limits, sum(d.max_lanes for d in problem.costs.platform.devices)
    for lanes in range((limits.max_lanes or 0) + 1, most + 1):
        wider = replace(problem, limits=replace(limits, max_lanes=lanes))
        try:
            if is_feasible(wider, [*rest, Limit("max_lanes")], deadline):
                return lanes
        except OutOfTimeError:
            return None
    return None


def _least_power_w(problem: Problem, rest: Sequence[Limit], deadline: float) -> float | None:
    """The least power cap, to a thousandth, with which the other limits can be met; None if there
    was no time to find it."""
    cap = problem.limits.power_w or 0.0
    low, high = cap, 2 * cap + sum(d.waiting_power_w for d in problem.costs.platform.devices)

    def is_enough(power_w: float) -> bool:
        capped = replace(problem, limits=replace(problem.limits, power_w=power_w))
        return is_feasible(capped, [*rest, Limit("power_w")], deadline)

    try:
        while not is_enough(high):
            low, high = high, 4 * high
            if high > 1e12:
                return None
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            if is_enough(middle):
                high = middle
            else:
                low = middle
    except OutOfTimeError:
        return None
    return high


def _memory(problem: Problem, conflicting: Sequence[Limit]) -> tuple[str, list[dict[str, Any]]]:
    """Memory needed by all tasks, memory of the devices, and the largest class; without numbers
    where time runs out."""
    alone, _ = keep_limits(problem, [k for k in conflicting if k.key != MEMORY])
    try:
        space = search_spaces(alone, frozenset({MEMORY}))[0]
    except OutOfTimeError:
        bare = {"kind": "memory", "name": problem.graph.name, "need": None}
        bare |= {"limit": None, "unit": "bytes"}
        return "fits into memory", [bare]
    total = sum(space.memory_bytes)
    used = sorted({m.device for modes in space.options for m in modes})
    room = {
        d: min(
            problem.costs.platform.device(d).memory_bytes,
            problem.limits.memory_bytes.get(d, math.inf),
        )
        for d in used
    }
    x = space.expansion
    largest = max(range(len(space.classes)), key=lambda c: space.memory_bytes[c])
    names = {t for u in space.classes[largest] for t in x.units[u]}
    text = (
        f"fits into memory: all together need {total:.3g} bytes and the limits are "
        f"{', '.join(f'{d} {size:.3g} bytes' for d, size in room.items())}; the largest share is "
        f"{', '.join(sorted(names))} with {space.memory_bytes[largest]:.3g} bytes"
    )
    entries = [
        {"kind": "memory", "name": d, "need": total, "limit": size, "unit": "bytes"}
        for d, size in room.items()
    ]
    return text, entries
