"""Places of units (mode and lane), and random moves between sets of places."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from pearl.planning.timing import Assignment
from pearl.solvers.model.list_schedule import Place
from pearl.solvers.model.search_space import SearchSpace


def compact(a: Assignment) -> list[int]:
    """Return consecutive lane numbers from 0 on every device."""
    numbers: dict[str, dict[int, int]] = {}
    lanes = []
    for m, lane in zip(a.modes, a.lanes, strict=True):
        device_numbers = numbers.setdefault(m.device, {})
        lanes.append(device_numbers.setdefault(lane, len(device_numbers)))
    return lanes


def build_assignment(p: SearchSpace, places: Sequence[Place]) -> Assignment:
    modes = tuple(p.options[u][o] for u, (o, _) in enumerate(places))
    return Assignment(p.expansion, p.costs, modes, tuple(lane for _, lane in places))


def random_move(
    p: SearchSpace, places: Sequence[Place], group: Sequence[int], r: random.Random
) -> list[Place] | None:
    """Return the places after one random move: a class to another device, a unit to another mode or
    lane, or an exchange of two units' lanes; None if the move breaks a rule."""
    new = list(places)
    u = r.randrange(len(new))
    members = p.classes[group[u]]
    device = p.options[u][new[u][0]].device
    kind = r.random()
    if kind < 0.4:
        common = set.intersection(*({m.device for m in p.options[w]} for w in members))
        others = sorted(common - {device})
        if not others:
            return None
        to = r.choice(others)
        for w in members:
            options = [o for o, m in enumerate(p.options[w]) if m.device == to]
            new[w] = r.choice(options), r.randrange(min(p.lanes[to], len(new)))
    elif kind < 0.8:
        options = [o for o, m in enumerate(p.options[u]) if m.device == device]
        new[u] = r.choice(options), r.randrange(min(p.lanes[device], len(new)))
    else:
        w = r.randrange(len(new))
        if p.options[w][new[w][0]].device == device:
            new[u], new[w] = (new[u][0], new[w][1]), (new[w][0], new[u][1])
        elif len(members) == len(p.classes[group[w]]) == 1:
            to = p.options[w][new[w][0]].device
            options_here = [o for o, m in enumerate(p.options[w]) if m.device == device]
            options_there = [o for o, m in enumerate(p.options[u]) if m.device == to]
            if not options_here or not options_there:
                return None
            new[u], new[w] = (
                (r.choice(options_there), new[w][1]),
                (r.choice(options_here), new[u][1]),
            )
    if new == list(places) or p.violates_coupling(build_assignment(p, new)):
        return None
    return new


def accept(r: random.Random, old: float, new: float, heat: float) -> bool:
    return new <= old or (heat > 0 and r.random() < math.exp(-(new - old) / heat))


def places_of(p: SearchSpace, a: Assignment) -> list[Place]:
    return [
        (p.options[u].index(m), lane)
        for u, (m, lane) in enumerate(zip(a.modes, compact(a), strict=True))
    ]


def groups_of(p: SearchSpace) -> list[int]:
    group = {u: c for c, members in enumerate(p.classes) for u in members}
    return [group[u] for u in range(len(p.options))]
