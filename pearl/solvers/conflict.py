"""Why no plan meets the limits: a smallest set of limits that no plan meets together.

Deletion filter (Chinneck and Dravnieks 1991): each limit is left out in turn, and stays out where
there is still no plan. What remains conflicts, and every proper part of it can be met.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.assignment import timing
from pearl.costs import CostTable
from pearl.errors import InfeasibleError
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.solvers.choices import Program, cost_of, programs
from pearl.solvers.period_form import PeriodForm

SECONDS = 5.0
"""What finding a smallest conflict may take (assumed)."""

MEMORY = "memory"

_MAPPINGS = ("variants", "devices", "pin")
_NUMBERS = ("power_w", "period_s", "min_throughput_per_s")


@dataclass(frozen=True)
class Limit:
    """One thing that may be in the way. key: the key of `Limits`, or MEMORY for what devices have
    and limits allow. name: which entry of a mapping or of a list; empty for a number."""

    key: str
    name: str = ""


class _TimeoutError(Exception):
    """There was not time enough to decide whether some limits can be met."""


def explain(
    graph: TaskGraph, costs: CostTable, limits: Limits, *, seconds: float = SECONDS
) -> InfeasibleError:
    """The error for limits that no assignment meets: a smallest conflicting set, with numbers."""
    deadline = time.monotonic() + seconds
    kept, smallest = _filtered(graph, costs, limits, deadline)
    parts, conflict = [], []
    for limit in kept:
        text, entries = _described(limit, kept, graph, costs, limits, deadline)
        parts.append(text)
        conflict += entries
    if not kept:
        numbers = [k for k in _all(limits) if k.key in _NUMBERS]
        for limit in numbers:
            conflict += _described(limit, numbers, graph, costs, limits, deadline)[1]
        return InfeasibleError(
            f"graph {graph.name!r}: some assignments would meet the limits if their lanes needed "
            "no order, but none does with one; allow a longer period or more power",
            conflict,
        )
    if len(kept) == 1:
        message = f"no plan {parts[0]}"
    else:
        message = f"no plan {', and '.join(parts)}: " + (
            "without any one of these there would be a plan for the others"
            if smallest
            else "one of these has to give"
        )
    return InfeasibleError(message, conflict)


def _filtered(
    graph: TaskGraph, costs: CostTable, limits: Limits, deadline: float
) -> tuple[list[Limit], bool]:
    """A set of limits that conflict, and whether every part of it can be met."""
    kept = list(_all(limits))
    smallest = True
    try:
        if _met(graph, costs, limits, kept, deadline):
            return [], True
    except _TimeoutError:
        return kept, False
    for limit in list(kept):
        rest = [k for k in kept if k != limit]
        try:
            if not _met(graph, costs, limits, rest, deadline):
                kept = rest
        except _TimeoutError:
            smallest = False
    return kept, smallest


def _all(limits: Limits) -> Iterator[Limit]:
    """Every limit in force. What comes first is left out first, and so kept only where it must be:
    what a user can most easily change comes last."""
    yield from (Limit("together", f"{a}, {b}") for a, b in limits.together)
    for key in ("variants", "devices", "pin"):
        yield from (Limit(key, task) for task in getattr(limits, key))
    if limits.max_lanes is not None:
        yield Limit("max_lanes")
    yield Limit(MEMORY)
    for key in _NUMBERS:
        if getattr(limits, key) is not None:
            yield Limit(key)


def _only(limits: Limits, kept: Sequence[Limit]) -> tuple[Limits, frozenset[str]]:
    """These limits alone, and what `programs` is to leave out."""
    names = {key: {k.name for k in kept if k.key == key} for key in (*_MAPPINGS, "together")}
    changed: dict[str, Any] = {
        key: {t: v for t, v in getattr(limits, key).items() if t in names[key]} for key in _MAPPINGS
    }
    changed["together"] = tuple(p for p in limits.together if ", ".join(p) in names["together"])
    numbers = {k.key for k in kept if not k.name}
    for key in ("max_lanes", *_NUMBERS):
        if key not in numbers:
            changed[key] = None
    return replace(limits, **changed), frozenset(() if MEMORY in numbers else (MEMORY,))


def _met(
    graph: TaskGraph, costs: CostTable, limits: Limits, kept: Sequence[Limit], deadline: float
) -> bool:
    """Whether some assignment meets these limits, lane orders left out."""
    alone, ignore = _only(limits, kept)
    try:
        choices = programs(graph, costs, alone, ignore)
    except InfeasibleError:
        return False
    return any(_least_s(p, alone, deadline) < math.inf for p in choices)


def _least_s(program: Program, limits: Limits, deadline: float) -> float:
    """The shortest period of a program, lane orders left out; infinite if no assignment meets the
    limits. Raises _TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise _TimeoutError
    _, assignment, finished = PeriodForm(program, "throughput", limits, None).run(math.inf, left)
    if assignment is None:
        if not finished:
            raise _TimeoutError
        return math.inf
    return cost_of("throughput", assignment, timing(assignment).order_bound_s, limits)[0]


def _shortest_s(
    graph: TaskGraph, costs: CostTable, limits: Limits, kept: Sequence[Limit], deadline: float
) -> float | None:
    """The shortest period under these limits; None if there was no time to find it."""
    alone, ignore = _only(limits, kept)
    try:
        return min(_least_s(p, alone, deadline) for p in programs(graph, costs, alone, ignore))
    except (_TimeoutError, InfeasibleError):
        return None


def _described(
    limit: Limit,
    kept: Sequence[Limit],
    graph: TaskGraph,
    costs: CostTable,
    limits: Limits,
    deadline: float,
) -> tuple[str, list[dict[str, Any]]]:
    """One limit of the conflict in words, with what would do without it, and as entries."""
    rest = [k for k in kept if k != limit]
    rate = "env steps/s" if graph.env_steps else "iterations/s"

    def entry(
        kind: str, name: str, need: float | None, at: float | None, unit: str
    ) -> list[dict[str, Any]]:
        return [{"kind": kind, "name": name, "need": need, "limit": at, "unit": unit}]

    if limit.key in ("period_s", "min_throughput_per_s"):
        others = [k for k in rest if k.key not in _NUMBERS[1:]]
        best = _shortest_s(graph, costs, limits, others, deadline)
        if limit.key == "period_s":
            asked = limits.period_s or 0.0
            text = f"meets period {asked:.6g} s"
            if best is not None and best < math.inf:
                text += f"; the shortest reachable is at least {best:.6g} s"
            return text, entry("period", graph.name, best, asked, "s")
        asked = limits.min_throughput_per_s or 0.0
        reachable = (graph.env_steps or 1) / best if best else None
        text = f"meets min_throughput {asked:.6g} {rate}"
        if reachable is not None:
            text += f"; the best reachable is at most {reachable:.6g}"
        return text, entry("min_throughput", graph.name, asked, reachable, rate)
    if limit.key == "power_w":
        cap = limits.power_w or 0.0
        always = sum(
            d.idle_power_w
            for d in costs.platform.devices
            if d.name == costs.platform.host or d.when_unused == "idle"
        )
        text = f"stays within the power limit of {cap:.6g} W"
        if always >= cap:
            need: float | None = always
            text += f": devices that are always on draw {always:.6g} W doing nothing"
        else:
            need = _least_power_w(graph, costs, limits, rest, deadline)
            text += f": about {need:.4g} W would do" if need is not None else ""
        return text, entry("power", graph.name, need, cap, "W")
    if limit.key == MEMORY:
        return _memory(graph, costs, limits, kept)
    if limit.key == "max_lanes":
        text = (
            f"has at most {limits.max_lanes} lanes (max_lanes): the tasks need more devices than "
            "that"
        )
        fewest = _fewest_lanes(graph, costs, limits, rest, deadline)
        return text, entry("lanes", graph.name, fewest, limits.max_lanes, "lanes")
    if limit.key == "together":
        text = f"puts {limit.name} on one device (together)"
        return text, entry("together", limit.name, 1, 0, "devices")
    value = getattr(limits, limit.key)[limit.name]
    shown = value if isinstance(value, str) else ", ".join(value)
    word = {"pin": "pinned to", "devices": "allowed only on", "variants": "allowed only as"}
    text = f"has {limit.name} {word[limit.key]} {shown or 'nothing'}"
    return text, entry(limit.key, limit.name, None, None, "")


def _fewest_lanes(
    graph: TaskGraph, costs: CostTable, limits: Limits, rest: Sequence[Limit], deadline: float
) -> float | None:
    """The least max_lanes with which the other limits can be met; None if it was not found."""
    most = sum(d.max_lanes for d in costs.platform.devices)
    for lanes in range((limits.max_lanes or 0) + 1, most + 1):
        wider = replace(limits, max_lanes=lanes)
        try:
            if _met(graph, costs, wider, [*rest, Limit("max_lanes")], deadline):
                return lanes
        except _TimeoutError:
            return None
    return None


def _least_power_w(
    graph: TaskGraph, costs: CostTable, limits: Limits, rest: Sequence[Limit], deadline: float
) -> float | None:
    """The least power cap, to a thousandth, with which the other limits can be met; None if there
    was no time to find it."""
    cap = limits.power_w or 0.0
    low, high = cap, 2 * cap + sum(d.idle_power_w for d in costs.platform.devices)
    try:
        while not _met(
            graph, costs, replace(limits, power_w=high), [*rest, Limit("power_w")], deadline
        ):
            low, high = high, 4 * high
            if high > 1e12:
                return None
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            capped = replace(limits, power_w=middle)
            if _met(graph, costs, capped, [*rest, Limit("power_w")], deadline):
                high = middle
            else:
                low = middle
    except _TimeoutError:
        return None
    return high


def _memory(
    graph: TaskGraph, costs: CostTable, limits: Limits, kept: Sequence[Limit]
) -> tuple[str, list[dict[str, Any]]]:
    """What all needs together, what devices have, and the largest share."""
    alone, _ = _only(limits, [k for k in kept if k.key != MEMORY])
    program = programs(graph, costs, alone, frozenset({MEMORY}))[0]
    total = sum(program.memory_bytes)
    used = sorted({m.device for modes in program.options for m in modes})
    room = {
        d: min(costs.platform.device(d).memory_bytes, limits.memory_bytes.get(d, math.inf))
        for d in used
    }
    x = program.expansion
    largest = max(range(len(program.classes)), key=lambda c: program.memory_bytes[c])
    names = {t for u in program.classes[largest] for t in x.units[u]}
    text = (
        f"fits into memory: all together need {total:.3g} bytes and the limits are "
        f"{', '.join(f'{d} {size:.3g} bytes' for d, size in room.items())}; the largest share is "
        f"{', '.join(sorted(names))} with {program.memory_bytes[largest]:.3g} bytes"
    )
    entries = [
        {"kind": "memory", "name": d, "need": total, "limit": size, "unit": "bytes"}
        for d, size in room.items()
    ]
    return text, entries
