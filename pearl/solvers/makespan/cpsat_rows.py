"""Rows of the constraint program for rules between units: pair and lane terms, memory, lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pearl.graph.limits import Call
from pearl.solvers.model.search_space import SearchSpace

Ways = Sequence[Mapping[tuple[int, int], Any]]
"""Unit → option and lane → the literal "they are chosen"."""

Extra = dict[tuple[int, int], list[tuple[int, Any]]]
"""Unit and option → added ticks, and the literal "they are added"."""


def extra_ticks(m: Any, p: SearchSpace, x: Ways, ticks: Callable[[float], int]) -> Extra:
    """Return the ticks that pair terms and lane terms add to a firing."""
    found: Extra = {}

    def add(u: int, o: int, seconds: float, other: Any) -> None:
        """Add seconds of option o of unit u if the literals of `other` sum to 1 too."""
        one = sum(literal for (k, _), literal in x[u].items() if k == o)
        both = m.new_bool_var("")
        m.add(both <= one)
        m.add(both <= other)
        m.add(both >= one + other - 1)
        found.setdefault((u, o), []).append((ticks(seconds), both))

    for u, o, w, other, seconds in p.pair_terms:
        if ticks(seconds):
            held = [literal for (k, _), literal in x[w].items() if k == other]
            add(u, o, seconds, sum(held))
    for u, w, seconds, shared in p.lane_terms:
        if not ticks(seconds):
            continue
        holds, others = m.new_bool_var(""), on_lanes(p, x, w)
        for lane, mine in on_lanes(p, x, u).items():
            theirs = others.get(lane, 0)
            m.add(holds >= (mine + theirs - 1 if shared else mine - theirs))
        for o in range(len(p.options[u])):
            add(u, o, seconds, holds)
    return found


def on_lanes(p: SearchSpace, x: Ways, unit: int) -> dict[tuple[str, int], Any]:
    """Return for each lane (device and number) the literals whose sum tells if the unit is on
    it."""
    found: dict[tuple[str, int], Any] = {}
    for (o, lane), literal in x[unit].items():
        key = p.options[unit][o].device, lane
        found[key] = found.get(key, 0) + literal
    return found


def memory_rows(m: Any, p: SearchSpace, on: Sequence[Mapping[str, Any]]) -> None:
    """Add the memory of devices. on: unit → device → the literal of its class."""
    for device, capacity in p.capacity_bytes.items():
        terms = [
            (round(size), on[members[0]][device])
            for members, size in zip(p.classes, p.memory_bytes, strict=True)
            if size and device in on[members[0]]
        ]
        if capacity < math.inf and terms:
            m.add(sum(b * x for b, x in terms) <= math.floor(capacity + len(terms)))


def lane_rules(m: Any, p: SearchSpace, x: Ways) -> None:
    """Add rows for units that must be apart, and for the memory of each unit of a lane."""
    for u, w in p.apart:
        others = on_lanes(p, x, w)
        for lane, mine in on_lanes(p, x, u).items():
            if lane in others:
                m.add(mine + others[lane] <= 1)
    for rule in p.rules:
        if rule.limit.rows is not None:
            rule.limit.rows(rule.value, MakespanRows(m, p, x))
    kept: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    for u, row in enumerate(x):
        for (o, number), literal in row.items():
            mode = p.options[u][o]
            size = math.floor(p.bytes_on_unit(u, mode))
            if size > 0 and p.unit_capacity_bytes[mode.device] < math.inf:
                kept.setdefault((mode.device, number), []).append((size, literal))
    for (device, _), terms in kept.items():
        m.add(sum(b * y for b, y in terms) <= math.floor(p.unit_capacity_bytes[device]))


class MakespanRows:
    """The model as a limit's `rows` see it (`pearl.graph.limits.LimitProgram`)."""

    def __init__(self, m: Any, p: SearchSpace, x: Ways) -> None:
        self.model = m
        self.ways: list[tuple[Call, Any]] = [
            (p.call(u, p.options[u][o], lane), literal)
            for u, row in enumerate(x)
            for (o, lane), literal in row.items()
        ]

    def variable(self) -> Any:
        return self.model.new_bool_var("")

    def at_most(self, terms: Sequence[tuple[Any, int]], most: int) -> None:
        self.model.add(sum(n * literal for literal, n in terms) <= most)
