"""A plan in time proportional to the graph, for use when a method found none in time.

Three assignments are compared by their loads: contiguous rows of tasks, one for each device; each
task where its load with its copies is least; and every task on one device if possible. Each device
has one lane, which runs the firings in the order of the program, shifted by whole iterations if no
cycle joins tasks. For makespan and energy, every task is on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.methods.relaxation_bounds import to_plan
from pearl.solvers.model.dag_instance import order_by_times
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, each_space
from pearl.solvers.orders.lane_sequencing import OrderResult
from pearl.solvers.orders.list_orders import ring_period, shifted_orders

BISECTIONS = 20
"""Number of bisections of the load of contiguous rows."""


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
        serial: Candidate | None = None
        for a in _gathered(space, problem.objective):
            serial = to_plan(order_by_times(a, keys, {}), problem)
            if serial:
                break
        if problem.objective != "throughput":
            if serial:
                return serial
            continue
        found = [c for a in _balanced(space) if (c := to_plan(_shifted(a, keys), problem))]
        best = min([*found, *([serial] if serial else [])], key=lambda c: c.cost, default=None)
        if best:
            return best
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
    """Yield the better one of two assignments with balanced loads, if there is one."""
    costs = [
        _there(space, members, set.intersection(*(set(space.on_device[u]) for u in members)))
        for members in space.classes
    ]
    order = sorted(range(len(costs)), key=lambda c: min(space.classes[c]))
    least: tuple[float, Assignment] | None = None
    for place in (_contiguous(space, costs, order), _spread(space, costs, order)):
        if place is None:
            continue
        modes: dict[int, Mode] = {}
        for c, device in place.items():
            modes.update(zip(space.classes[c], costs[c][device][1], strict=True))
        a = Assignment(
            space.expansion,
            space.costs,
            tuple(modes[u] for u in range(len(space.options))),
            (0,) * len(modes),
        )
        if not space.violates_coupling(a):
            load_s = max(build_timed_graph(a).loads_s.values())
            if least is None or load_s < least[0]:
                least = load_s, a
    if least:
        yield least[1]


There = dict[str, tuple[float, list[Mode]]]
"""Device → seconds of a class there, and the quickest mode of each of its units."""


def _there(space: SearchSpace, members: tuple[int, ...], devices: set[str]) -> There:
    found: There = {}
    for device in sorted(devices):
        chosen = [min(space.on_device[u][device], key=_seconds) for u in members]
        seconds = sum(
            space.expansion.firings(u) * _seconds(m) for u, m in zip(members, chosen, strict=True)
        )
        found[device] = seconds, chosen
    return found


def _contiguous(space: SearchSpace, costs: list[There], order: list[int]) -> dict[int, str] | None:
    """Return the device of each class, in rows of the program's order with the least largest
    load; None if the rows do not fit."""
    devices = [d.name for d in space.costs.platform.devices if any(d.name in c for c in costs)]

    def rows(limit_s: float) -> dict[int, str] | None:
        place: dict[int, str] = {}
        k, load, room = 0, 0.0, space.capacity_bytes[devices[0]]
        for c in order:
            size = space.memory_bytes[c]
            while (
                devices[k] not in costs[c]
                or load + costs[c][devices[k]][0] > limit_s
                or size > room
            ):
                k += 1
                if k == len(devices):
                    return None
                load, room = 0.0, space.capacity_bytes[devices[k]]
            place[c] = devices[k]
            load, room = load + costs[c][devices[k]][0], room - size
        return place

    low, high = 0.0, sum(max(s for s, _ in there.values()) for there in costs)
    best = rows(high)
    for _ in range(BISECTIONS if best else 0):
        middle = (low + high) / 2
        found = rows(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _spread(space: SearchSpace, costs: list[There], order: list[int]) -> dict[int, str] | None:
    """Return the device of each class where its load, with the copies that it reads and that the
    lane there pays for, is least; None if a class has no room."""
    x, platform = space.expansion, space.costs.platform
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    of = {u: c for c, members in enumerate(space.classes) for u in members}
    reads: list[list[tuple[int, float, int]]] = [[] for _ in costs]
    for e in x.graph.edges:
        a, b = of[unit[e.src]], of[unit[e.dst]]
        if a != b:
            reads[b].append((a, e.bytes, x.graph.repetition[e.src]))
    paid = {
        end: (link.per_message_s, 1 / link.bytes_per_s)
        for link in platform.links
        for end in (link.a, link.b)
        if end != platform.host and link.paid_by == "lane"
    }
    load = dict.fromkeys((d.name for d in platform.devices), 0.0)
    room, place = dict(space.capacity_bytes), dict[int, str]()
    for c in order:
        after: dict[str, float] = {}
        for device, (seconds, _) in costs[c].items():
            if space.memory_bytes[c] <= room[device]:
                a_message, a_byte = paid.get(device, (0.0, 0.0))
                copies = sum(
                    messages * (a_message + size * a_byte)
                    for a, size, messages in reads[c]
                    if place.get(a, device) != device
                )
                after[device] = load[device] + seconds + copies
        if not after:
            return None
        device = min(after, key=lambda d: after[d])
        place[c], load[device] = device, after[device]
        room[device] -= space.memory_bytes[c]
    return place


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
