"""Checks of a `Plan` against a graph and its costs, its timed graph, and its run in time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pearl.errors import SpecError
from pearl.graph.cycle_ratio import Arc
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.period import expand, simulate
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plans import Entry, Plan
from pearl.planning.problem import Problem, split_costs
from pearl.planning.replicas import (
    ReplicaSplit,
    copy_name,
    split_graph,
    split_of,
)
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph, channel_arcs
from pearl_devices import Platform
from pearl_estimators import Estimate


def plan_timing(plan: Plan, problem: Problem) -> tuple[TimedGraph, list[Arc]]:
    """Return the timed graph of a plan and all its arcs: dependences, rings, and capacities.

    Raises SpecError, which names the disagreement of the plan with the graph or the costs.
    """
    timed, orders, held = plan_orders(plan, problem)
    return timed, [*timed.arcs, *timed.ring(orders), *held]


def plan_orders(plan: Plan, problem: Problem) -> tuple[TimedGraph, Orders, list[Arc]]:
    """Return the timed graph of a plan, the orders of its lanes, and the arcs of its full channels.

    Raises SpecError, which names the disagreement of the plan with the graph or the costs.
    """
    plan, graph = unfold_replicas(plan, problem.graph)
    return _order_lanes(plan, graph, split_costs(problem.costs, split_of(graph)))


def _order_lanes(
    plan: Plan, graph: TaskGraph, costs: CostTable
) -> tuple[TimedGraph, Orders, list[Arc]]:
    """`plan_orders` of a plan without replicas."""
    assignment = _assignment_of(plan, graph, costs)
    timed = build_timed_graph(assignment)
    held: list[Arc] = []
    for channel in plan.edges:
        if channel.capacity is not None:
            edge = Edge(
                channel.src,
                channel.dst,
                channel.production,
                channel.consumption,
                channel.tokens_seq,
                channel.slack,
            )
            rows = channel_arcs(assignment.expansion, edge, channel.capacity)
            held += [(s, d, timed.latency_s[s], m) for s, d, m in rows]
    return timed, _orders_of(plan, timed), held


def completions(
    plan: Plan, graph: TaskGraph, platform: Platform, iterations: int
) -> NDArray[np.float64]:
    """Return when each iteration of a plan is complete, in seconds, shape (iterations,): self-timed
    from time 0, with the times in the plan. This is the clock of an emulated run.

    `pace_s` is respected. O(firings · iterations).
    """
    plan, graph = unfold_replicas(plan, graph)
    timed, arcs = plan_timing(plan, Problem(graph, costs_from_plan(plan, graph, platform)))
    n = len(timed.names)
    beyond = 1 + max((abs(m) for _, _, _, m in arcs), default=0)
    if plan.pace_s:
        arcs = [*arcs, (n, n, plan.pace_s, 1), *((n, i, 0.0, 0) for i in range(n))]
    start = simulate(n + bool(plan.pace_s), arcs, iterations + beyond)[:iterations, :n]
    ends: NDArray[np.float64] = (start + np.array(timed.latency_s)).max(axis=1)
    return np.maximum.accumulate(ends)


def costs_from_plan(plan: Plan, graph: TaskGraph, platform: Platform) -> CostTable:
    """Build a cost table of the modes that a plan chose, with the times in the plan.

    The times include pair terms.

    Raises:
        SpecError: a time in the plan is not valid.
    """
    call_s: dict[tuple[str, ...], list[float]] = {}
    chosen: dict[tuple[str, ...], tuple[str, str, int]] = {}
    number = {t.name: k for k, t in enumerate(graph.tasks)}
    for t in plan.tasks:
        here = {t.task, *t.fused_with} & number.keys()
        tasks = tuple(sorted(here, key=number.__getitem__))
        calls = t.firings if t.fused_with else 1
        times = call_s.setdefault(tasks, [0.0, 0.0])
        times[0] += t.seconds * calls
        times[1] += t.occupancy_s * calls
        chosen.setdefault(tasks, (t.device, t.variant, t.width))
    try:
        return CostTable(
            platform,
            tuple(
                Mode(tasks, *chosen[tasks], Estimate(latency, min(occupancy, latency)))
                for tasks, (latency, occupancy) in call_s.items()
            ),
        )
    except ValueError as error:
        raise SpecError(f"plan: its times are invalid: {error}") from None


def unfold_replicas(plan: Plan, graph: TaskGraph) -> tuple[Plan, TaskGraph]:
    """Return a plan with replicas as a plan of the graph in which its split tasks are copies; a
    plan without replicas, or already unfolded, is unchanged.

    Raises:
        SpecError: the replicas do not add up.
    """
    split_tasks = {t.task: t for t in plan.tasks if t.replicas > 1}
    if not split_tasks:
        return plan, graph
    environments = {t.name: t.environments for t in graph.tasks}
    problems = []
    for task, t in split_tasks.items():
        rows = sorted(o.replica for o in plan.tasks if o.task == task)
        if not environments.get(task):
            problems.append(f"plan: task {task} has {t.replicas} replicas; it cannot be split")
        elif len(rows) != t.replicas or rows != list(range(len(rows))):
            needed = f"they must be 0 to {t.replicas - 1}"
            problems.append(f"plan: task {task} has replicas {rows}; {needed}")
        elif len(t.shares) != t.replicas or sum(t.shares) != environments[task]:
            problems.append(
                f"plan: task {task} shares out {list(t.shares)} environments among {t.replicas} "
                f"replicas; there must be one share each, {environments[task]} in all"
            )
    if len({t.shares for t in plan.tasks if t.replicas > 1}) > 1:
        problems.append("plan: tasks that are split must have the same shares; these differ")
    if min((s for t in split_tasks.values() for s in t.shares), default=1) < 1:
        problems.append("plan: every replica needs at least 1 environment")
    if problems:
        raise SpecError(*problems)
    split = ReplicaSplit(tuple(split_tasks), next(iter(split_tasks.values())).shares)

    def name(task: str, replica: int) -> str:
        origin, arrow, to = task.partition(">")
        return copy_name(origin, replica) + arrow + to if origin in split_tasks else task

    whole = replace(
        plan,
        tasks=tuple(
            replace(t, task=name(t.task, t.replica), replicas=1, shares=(), replica=0)
            for t in plan.tasks
        ),
        lanes=tuple(
            replace(k, order=tuple(Entry(name(e.task, e.replica), e.offset) for e in k.order))
            for k in plan.lanes
        ),
        edges=tuple(
            replace(c, src=name(c.src, c.src_replica), dst=name(c.dst, c.dst_replica))
            for c in plan.edges
        ),
    )
    return whole, split_graph(graph, split)


def _assignment_of(plan: Plan, graph: TaskGraph, costs: CostTable) -> Assignment:
    names = {t.name: k for k, t in enumerate(graph.tasks)}
    placed = Counter(t.task for t in plan.tasks)
    problems = [
        f"plan: task {n} is placed {placed[n]} times; it must be once"
        for n in names
        if placed[n] != 1
    ]
    problems += [
        f"plan: task {n!r} is not in the graph; there are {[*names]}"
        for n in placed
        if n not in names
    ]
    devices = [d.name for d in costs.platform.devices]
    problems += [
        f"plan: task {t.task} is on {t.device!r}; devices are {devices}"
        for t in plan.tasks
        if t.device not in devices
    ]
    slack: dict[EdgeKey, int] = {}
    channels, edges = key_edges(plan.edges), key_edges(graph.edges)
    for key, e in edges.items():
        c = channels.get(key)
        same = c and (c.production, c.consumption, c.tokens_seq, c.reach) == (
            e.production,
            e.consumption,
            e.tokens_seq,
            e.reach,
        )
        if c is None or not same or c.slack < 0:
            problems.append(
                f"plan: edge {e.src} → {e.dst} of the graph ({e.production} → {e.consumption}, "
                f"{e.tokens_seq} tokens) is missing or different in the plan"
            )
        else:
            slack[key] = c.slack
    problems += [
        f"plan: edge {src} → {dst} is {which + 1} times in the plan, {which} times in the graph"
        for src, dst, which in channels
        if (src, dst, which) not in edges
    ]
    if problems:
        raise SpecError(*problems)
    fused = {
        tuple(sorted((t.task, *t.fused_with), key=lambda n: names.get(n, -1)))
        for t in plan.tasks
        if t.fused_with
    }
    sets = {frozenset(m.tasks): m.tasks for m in costs.modes if m.fused}
    unknown = [f for f in fused if frozenset(f) not in sets]
    if unknown:
        raise SpecError(*(f"plan: there is no fused mode of {', '.join(f)}" for f in unknown))
    x = expand(graph.with_slack(slack), [sets[frozenset(f)] for f in sorted(fused)])
    modes: list[Mode] = []
    lanes: list[int] = []
    numbers: dict[str, dict[str, int]] = {}
    placement = {t.task: t for t in plan.tasks}
    for unit in x.units:
        t = placement[unit[0]]
        match = [m for m in costs.of(*unit) if m.key == (t.device, t.variant, t.width)]
        if not match:
            raise SpecError(
                f"plan: {'+'.join(unit)} has no mode {t.variant!r} of width {t.width} on "
                f"{t.device}; there are {[m.key for m in costs.of(*unit)]}"
            )
        modes.append(match[0])
        lane_numbers = numbers.setdefault(t.device, {})
        lanes.append(lane_numbers.setdefault(t.lane, len(lane_numbers)))
    return Assignment(x, costs, tuple(modes), tuple(lanes))


def _orders_of(plan: Plan, timed: TimedGraph) -> Orders:
    a = timed.assignment
    links = {link.name for link in a.costs.platform.links}
    where = {t.task: t.lane for t in plan.tasks}
    lane_name = {
        name: name if name in links else where[timed.names[members[0]][0].split("+")[0]]
        for name, members in timed.lanes.items()
    }
    listed = {k.lane: k for k in plan.lanes}
    number = {name: i for i, name in enumerate(timed.names)}
    units = {t: unit for unit in a.expansion.units for t in unit}
    orders: dict[str, tuple[tuple[int, int], ...]] = {}
    for name, members in timed.lanes.items():
        if lane_name[name] not in listed:
            raise SpecError(f"plan: lane {lane_name[name]} is used but not listed among its lanes")
        lane, here = listed[lane_name[name]], set(members)
        counts: dict[str, int] = {}
        ring: dict[int, int] = {}
        for entry in lane.order:
            firing = counts.get(entry.task, 0)
            counts[entry.task] = firing + 1
            unit = units.get(entry.task, (entry.task,))
            i = number.get(("+".join(unit), firing if len(unit) == 1 else 0))
            if i is None or i not in here:
                raise SpecError(
                    f"plan: lane {lane.lane}: entry {entry.task} (firing {firing}) does not run "
                    "there"
                )
            ring.setdefault(i, entry.offset)
        expected = [
            (t, a.expansion.graph.repetition[t])
            for i in members
            for t in units.get(timed.names[i][0].split("+")[0], ())
        ]
        missing = [timed.names[i] for i in members if i not in ring]
        short = [t for t, q in expected if counts.get(t, 0) != q]
        if missing or short:
            raise SpecError(
                f"plan: lane {lane.lane}: the order is incomplete: it needs one entry per firing "
                f"of {', '.join(dict.fromkeys([*(m[0] for m in missing), *short]))}"
            )
        orders[name] = tuple(ring.items())
    return orders
