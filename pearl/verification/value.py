"""The value of a plan: its place, order and start times keep every rule and limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pearl.graph.limits import LIMITS
from pearl.graph.parallel_edges import key_edges
from pearl.graph.period import start_times
from pearl.graph.task_graph import Edge
from pearl.planning.costs import Mode
from pearl.planning.plan_validation import plan_orders, unfold_replicas
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import split_of
from pearl.planning.timing import Orders as LaneOrders
from pearl.planning.timing import TimedGraph
from pearl.verification.model import (
    Arc,
    Space,
    Timed,
    channel_bytes,
    fits_slack,
    longest_s,
    require,
    timed_graph,
)

TOLERANCE, SAME = 1e-9, 1e-6
"""Relative error of a start time, and of a figure that is stated twice."""


@dataclass(frozen=True)
class Checked:
    """What the start times of an allowed assignment prove: its cost in seconds or joules of an
    iteration, and its energy. For makespan the cost is the end of the first iteration."""

    space: Space
    cost: float
    energy_j: float
    starts: Mapping[str, float]


def check_plan(plan: Plan, problem: Problem, start: Mapping[str, float] | None = None) -> Checked:
    """Check a plan against its problem, without its bound.

    start: the start of each firing `task[0]` in a period, in seconds; by default the earliest.

    Raises:
        RefusedError: the plan breaks a rule or a limit, or states a wrong figure.
        SpecError: the plan is not one of the problem's graph and modes.
    """
    problem = replace(problem, objective=plan.objective)
    given, orders, _ = plan_orders(plan, problem)
    whole, _ = unfold_replicas(plan, problem.graph)
    channels, edges = key_edges(whole.edges), key_edges(given.assignment.expansion.graph.edges)
    for key, e in edges.items():
        said, true = (channels[key].tokens, channels[key].bytes), (e.tokens, e.bytes)
        require(said == true, f"edge {e.src} → {e.dst}", f"tokens and bytes {said}, not {true}")
    held = [channels[key].capacity for key in edges]
    checked = check_timing(given, orders, problem, plan.period_s, held, start)
    _check_lanes(whole, checked.space, given.assignment.modes)
    cost, single = checked.cost, plan.objective == "makespan"
    value = cost if single else (problem.graph.env_steps or 1) / cost if cost > 0 else math.inf
    best = plan.bound_value
    gap = 1 - best / value if single else 1 - value / best if best > 0 else 1.0
    figures = {
        "energy_per_iteration_j": (checked.energy_j, checked.energy_j),
        "power_w": (checked.energy_j / plan.period_s, checked.energy_j),
        "value": (value, value),
        "gap": (plan.gap if plan.regret else max(0.0, gap), 1.0),
    }
    for name, (number, unit) in figures.items():
        same = abs(getattr(plan, name) - number) <= SAME * max(abs(number), abs(unit))
        text = f"it is {getattr(plan, name):.9g}; with these costs it is {number:.9g}"
        require(same, name, f"{text}: the plan was made with other estimates or altered")
    proved = plan.status != "optimal" or plan.gap <= SAME
    require(proved and plan.bound_s <= plan.period_s, "status", f"{plan.status}, gap {plan.gap}")
    return checked


def check_timing(
    given: TimedGraph,
    orders: LaneOrders,
    problem: Problem,
    period_s: float,
    held: Sequence[int | None] = (),
    start: Mapping[str, float] | None = None,
) -> Checked:
    """Check the modes, lanes and orders of an assignment: they keep all rules and limits.

    given: only its assignment and the names of its nodes are used. held: the capacity of each
    channel; by default no channel is ever full.

    Raises:
        RefusedError: it breaks a rule or a limit.
    """
    a, single = given.assignment, problem.objective == "makespan"
    copies, split = a.expansion.graph, split_of(a.expansion.graph)
    for task in split.tasks:
        most, row = problem.limits.replicas.get(task, 1), f"replicas {task}"
        require(len(split.shares) <= most, row, f"{len(split.shares)}, above the limit of {most}")
    part = split_problem(problem, split)
    limits = part.limits.without_slack() if single else part.limits
    slack = {key: e.slack for key, e in key_edges(copies.edges).items()}
    same = copies.tasks == part.graph.tasks and slack.keys() == key_edges(part.graph.edges).keys()
    same = same and part.graph.with_slack(slack).edges == copies.edges
    require(same, "graph", "it is of another graph")
    require(fits_slack(slack, part.graph, limits), "slack", f"{slack} exceeds its limit")
    x = Space(replace(part, graph=copies), part.graph, a.expansion.units)
    for u, (unit, mode) in enumerate(zip(x.units, a.modes, strict=True)):
        text = f"the mode {mode.key} is not among those allowed: {[m.key for m in x.modes[u]]}"
        require(mode in x.modes[u], f"choose {'+'.join(unit)}", text)
    for e, room in zip(copies.edges, held, strict=False):
        least = e.least_capacity if e.is_channel else None
        fits = room is None if least is None else room is not None and room >= least
        require(fits, f"capacity {e.src} → {e.dst}", f"it is {room}; it must be {least} at least")
    timed = timed_graph(x, a.modes, a.lanes)
    number = {name: i for i, name in enumerate(timed.names)}
    rings = {k: [(number[given.names[i]], o) for i, o in ring] for k, ring in orders.items()}
    arcs = [*timed.arcs, *_rings(timed, rings), *_full(timed, held)]
    starts = _check_starts(timed, arcs, period_s, start)
    idle = x.problem.costs.platform.idle_w({m.device for m in a.modes})
    energy = math.fsum(idle.values()) * period_s + timed.dynamic_j
    cost = energy if problem.objective == "power_efficiency" else period_s
    if single:
        now = [arc for arc in arcs if arc[3] == 0]
        begin = start_times(len(timed.names), now, 0.0)
        cost = max(begin[i] + timed.latency[i] for i in range(len(x.nodes)))
    else:
        longest = longest_s(x.problem) * (1 + SAME)
        require(period_s <= longest, "period", f"{period_s:.9g} s, above {longest:.9g} s")
        most_w = (limits.power_w or math.inf) * (1 + SAME)
        text = f"{energy / period_s:.6g} W, above {most_w:.6g} W"
        require(energy / period_s <= most_w, "power", text)
    check_places(x, a.modes, a.lanes, held or [e.least_capacity for e in copies.edges])
    return Checked(x, cost, energy, starts)


def _check_lanes(plan: Plan, x: Space, modes: Sequence[Mode]) -> None:
    """Check that each task has the mode and lane of its call, and lanes the widths of their
    tasks."""
    placed = {t.task: t for t in plan.tasks}
    for u, unit in enumerate(x.units):
        for t in (placed[name] for name in unit):
            said = t.device, t.variant, t.width, t.lane, {t.task, *t.fused_with}
            same = said == (*modes[u].key, placed[unit[0]].lane, set(unit))
            require(same, f"call {'+'.join(unit)}", f"{t.task} has another place than its call")
    for k in plan.lanes:
        widths = [t.width for t in plan.tasks if (t.lane, t.device) == (k.lane, k.device)]
        text = f"it is {k.width} wide on {k.device}; its tasks are {widths} wide"
        require(k.width == max(widths, default=0), f"lane {k.lane}", text)


def check_places(
    x: Space, modes: Sequence[Mode], lanes: Sequence[int], held: Sequence[int | None]
) -> None:
    """Check the rules that join tasks: devices, lanes, widths and memory. held: the capacity of
    each channel."""
    p, place = x.problem, [(m.device, k) for m, k in zip(modes, lanes, strict=True)]
    needs, room = x.memory
    kept, per_unit = dict.fromkeys(room, 0.0), dict.fromkeys(place, 0.0)
    for members, need in zip(x.classes, needs, strict=True):
        on = {"+".join(x.units[u]): modes[u].device for u in members}
        require(len(set(on.values())) == 1, "class", f"{on} must be on one device")
        kept[modes[members[0]].device] += need
    width = dict.fromkeys(place, 0)
    for m, where in zip(modes, place, strict=True):
        per_unit[where] += m.unit_bytes
        width[where] = max(m.width, width[where])
    for e, capacity in zip(p.graph.edges, held, strict=True):
        if x.is_channel(e):
            where = place[x.unit_of[e.dst]]
            kept[where[0]] += channel_bytes(e, capacity)
            per_unit[where] += channel_bytes(e, capacity)
    for d, size in kept.items():
        text = f"{size:.9g} bytes are kept; it has {room[d]:.9g}"
        require(size <= room[d] * (1 + TOLERANCE), f"memory {d}", text)
    for (name, k), size in per_unit.items():
        most = p.costs.platform.device(name).unit_memory_bytes
        text = f"{size:.9g} bytes on each unit; a unit has {most:.9g} bytes"
        require(size <= most * (1 + TOLERANCE), f"unit memory {name}.{k}", text)
    for device in p.costs.platform.devices:
        wide = [w for (name, _), w in width.items() if name == device.name]
        text = f"{len(wide)} lanes; it allows {device.max_lanes}"
        require(len(wide) <= device.max_lanes, f"lanes {device.name}", text)
        text = f"its lanes are {sum(wide)} {device.width_unit} wide together; it has {device.width}"
        require(sum(wide) <= device.width, f"widths {device.name}", text)
    calls = [x.call(u, m, k) for u, (m, k) in enumerate(zip(modes, lanes, strict=True))]
    used = ", ".join(f"{device}.{k}" for device, k in width)
    for limit in LIMITS.values():
        for name, part in limit.parts(p.limits).items():
            holds = limit.holds is None or limit.holds(limit.keep(p.limits, [name]), calls)
            text = f"its lanes are {used}; an allowed plan {limit.sentence(name, part)}"
            require(holds, f"{limit.key} {name}".strip(), text)


def _rings(timed: Timed, rings: Mapping[str, list[tuple[int, int]]]) -> list[Arc]:
    """Return the arcs of the lanes' orders: one token around each ring, so that no two firings of a
    lane meet. Firings of a task run in order."""
    arcs: list[Arc] = []
    require(rings.keys() == timed.lanes.keys(), "lanes", f"there are {list(timed.lanes)}")
    for lane, ring in rings.items():
        whole = sorted(i for i, _ in ring) == timed.lanes[lane]
        require(whole, f"lane {lane}", "its order needs each firing once")
        turns: dict[str, list[tuple[int, int, int]]] = {}
        for k, (i, ahead) in enumerate(ring):
            j, next_ahead = ring[(k + 1) % len(ring)]
            arcs.append((i, j, timed.occupancy[i], next_ahead - ahead + (k + 1 == len(ring))))
            turns.setdefault(timed.names[i][0], []).append((timed.names[i][1], -ahead, k))
        for task, turn in turns.items():
            order = [(at, k) for _, at, k in sorted(turn)]
            order.append((order[0][0] + 1, order[0][1]))
            in_order = all(one < other for one, other in pairwise(order))
            require(in_order, f"sequence {task}", f"its firings are out of order on lane {lane}")
    return arcs


def _full(timed: Timed, held: Sequence[int | None]) -> list[Arc]:
    """Return the arcs by which a producer waits while its channel is full."""
    x, arcs = timed.space, list[Arc]()
    for e, capacity in zip(x.problem.graph.edges, held, strict=False):
        if x.is_channel(e) and capacity is not None:
            back = Edge(e.dst, e.src, e.consumption, e.production)
            arcs += [(s, d, timed.latency[s], m) for s, d, m in x.waits(back, capacity - e.tokens)]
    return arcs


def _check_starts(
    timed: Timed, arcs: list[Arc], period: float, start: Mapping[str, float] | None
) -> dict[str, float]:
    """Check that starts of a period keep every arc. They come from the proof or from a search that
    nothing depends on: an arc that they break is refused."""
    require(0 < period < math.inf, "period", f"it is {period}")
    names = [f"{task}[{firing}]" for task, firing in timed.names]
    if start is None:
        begin = np.array(start_times(len(names), arcs, period))
    else:
        lost = [n for n in names if not math.isfinite(start.get(n, math.nan))]
        require(not lost, "start", f"{', '.join(lost)}: missing or no number")
        begin = np.array([start[n] for n in names])
    s, d, w, m = (np.array(each) for each in zip(*arcs, strict=True))
    late = begin[s] + w - m * period - begin[d]
    worst = int(np.argmax(late))
    row = f"arc {names[s[worst]]} → {names[d[worst]]}"
    text = f"{late[worst]:.3g} s short at a period of {period:.9g} s"
    require(bool(late[worst] <= TOLERANCE * period), row, text)
    return dict(zip(names, begin.tolist(), strict=True))
