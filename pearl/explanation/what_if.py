"""What-if analysis: throughput and efficiency of changed problems, solved again, never guessed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pearl.explanation.resolve import (
    SAME,
    Answer,
    Resolver,
    efficiency,
    equivalents_of,
    throughput,
    without_modes,
)
from pearl.formatting import listed
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem

FASTER = 0.8
"""A task 20 % faster takes this fraction of its time, and of its energy above idle."""


@dataclass(frozen=True)
class Change:
    """A change of the problem: its subject, the change in words, and the changed problem."""

    kind: Literal["slack", "lanes", "link", "task", "device"]
    name: str
    text: str
    problem: Problem


@dataclass(frozen=True)
class WhatIf:
    """The best plan of a changed problem, for the same objective.

    value: of the objective; for a robust plan by the estimates, as throughput and efficiency are.
    throughput, efficiency: env steps (iterations) per second and per joule.
    gain: of the objective, as a fraction of the plan's value; for a robust plan under its samples.
    infeasible: why there is no plan; all values are then None.
    proven: the plan is proved to be the best one.
    changes: any value differs from the plan's, or there is no plan.
    """

    kind: Literal["slack", "lanes", "link", "task", "device"]
    name: str
    text: str
    value: float | None
    throughput: float | None
    efficiency: float | None
    gain: float | None
    proven: bool
    changes: bool
    infeasible: str | None = None


def what_ifs(resolver: Resolver) -> tuple[tuple[WhatIf, ...], tuple[str, ...]]:
    """Solve every change again; return them by falling gain, and the changes without time left.

    One of several interchangeable devices stands for all. The order is that of user interest: each
    device removed, and all its equivalents; one more slack if the graph has any (none for makespan,
    which has no slack); one more core and lane on each device; each link twice as fast; each task
    20 % faster, those with most of the period first; and nothing on the host, which cannot be
    removed.
    """
    results: list[WhatIf] = []
    left_out: list[str] = []
    changes = list(_changes(resolver))
    for n, change in enumerate(changes):
        answer = resolver.solve(change.problem, waiting=len(changes) - n)
        if answer is None:
            left_out.append(change.text)
        elif answer.plan is None:
            about, unknown = (change.kind, change.name, change.text), (None,) * 4
            results.append(WhatIf(*about, *unknown, answer.proven, True, answer.reason))
        else:
            results.append(_result(resolver, change, answer, answer.plan))
    results.sort(key=lambda w: -w.gain if w.gain is not None else float("inf"))
    return tuple(results), tuple(left_out)


def _result(resolver: Resolver, change: Change, answer: Answer, plan: Plan) -> WhatIf:
    gain, proven = answer.gain, answer.proven
    if change.kind != "device" and not proven and gain < 0:
        plan, gain = resolver.plan, 0.0  # more resources never hurt, so the plan itself stays valid
    now, per_j = throughput(plan), efficiency(plan)
    pairs = [
        (plan.value, resolver.plan.value),
        (now, resolver.throughput),
        (per_j or 0.0, resolver.efficiency or 0.0),
    ]
    return WhatIf(
        change.kind,
        change.name,
        change.text,
        plan.value,
        now,
        per_j,
        gain,
        proven and resolver.plan.status == "optimal",
        abs(gain) > SAME or any(abs(a - b) > SAME * max(a, b) for a, b in pairs),
    )


def _changes(resolver: Resolver) -> Iterator[Change]:
    problem = resolver.problem
    represented = {d for same in resolver.interchangeable for d in same[1:]}
    devices = list(_devices(resolver))
    yield from devices[:-1]
    if resolver.plan.objective != "makespan":
        yield from _slack(problem)
    yield from _lanes(problem, represented)
    yield from _links(problem, represented)
    taken = {t.task: -t.share_of_period for t in resolver.plan.tasks}
    for task in sorted(taken, key=lambda t: taken[t]):
        costs = speed_up(problem.costs, problem.graph, task)
        percent = f"{100 * (1 - FASTER):.0f} %"
        changed = replace(problem, costing=costs)
        yield Change("task", task, f"{task} {percent} faster", changed)
    yield from devices[-1:]


def _slack(problem: Problem) -> Iterator[Change]:
    limits = problem.limits
    keys = {e.limit: e for e in problem.graph.edges if e.limit}
    for key, edge in keys.items():
        raised = {key: getattr(limits, key) + 1}
        if key == "prefetch" and "priority_staleness" in keys:
            # Both are slack on one cycle, and the staleness limit holds for their sum.
            raised["priority_staleness"] = limits.priority_staleness + 1
        steps = [f"{k} {getattr(limits, k)} → {v}" for k, v in raised.items()]
        text = f"{' and '.join(steps)} ({edge.src} → {edge.dst})"
        yield Change("slack", key, text, replace(problem, limits=replace(limits, **raised)))


def _lanes(problem: Problem, represented: Collection[str]) -> Iterator[Change]:
    costs, limits = problem.costs, problem.limits
    platform = costs.platform
    for device in (d for d in platform.devices if d.name not in represented):
        more = replace(device, width=device.width + 1, max_lanes=device.max_lanes + 1)
        text = f"one more {_singular(device.width_unit)} and lane on {device.name}"
        allowed = limits
        if limits.max_lanes is not None:
            allowed = replace(limits, max_lanes=limits.max_lanes + 1)
            text += f", max_lanes {limits.max_lanes} → {limits.max_lanes + 1}"
        wider = replace(
            platform, devices=tuple(more if d == device else d for d in platform.devices)
        )
        changed = replace(problem, costing=replace(costs, platform=wider), limits=allowed)
        yield Change("lanes", device.name, text, changed)


def _singular(unit: str) -> str:
    """The singular of a unit of width: a core, a mesh."""
    for ending in ("shes", "ches", "xes", "sses"):
        if unit.endswith(ending):
            return unit[:-2]
    return unit.removesuffix("s")


def _links(problem: Problem, represented: Collection[str]) -> Iterator[Change]:
    platform = problem.costs.platform
    for link in (k for k in platform.links if not {k.a, k.b} & set(represented)):
        links = tuple(link.slower(0.5) if k is link else k for k in platform.links)
        table = replace(problem.costs, platform=replace(platform, links=links))
        changed = replace(problem, costing=table)
        yield Change("link", link.name, f"link {link.name} twice as fast", changed)


def _devices(resolver: Resolver) -> Iterator[Change]:
    """Each device removed, the host last; of interchangeable devices one, then all of them."""
    problem = resolver.problem
    platform = problem.costs.platform
    host = platform.host
    others = [(d.name,) for d in platform.devices if d.name != host]
    gone: list[tuple[str, ...]] = []
    for (name,) in others:
        same = (name, *equivalents_of(resolver.interchangeable, name))
        sets = (
            [next(s for s in resolver.interchangeable if name in s)[-1:], same]
            if len(same) > 1
            else [same]
        )
        gone += [g for g in sets if not any(set(g) == set(o) for o in gone)]
    for names in gone:
        without = without_devices(problem, names)
        yield Change("device", listed(names), f"without {listed(names)}", without)
    if others:
        costs = problem.costs
        table = without_modes(costs, [m for m in costs.modes if m.device == host])
        nothing = replace(problem, costing=table)
        yield Change("device", host, f"nothing on {host}, the host", nothing)


def without_devices(problem: Problem, names: Collection[str]) -> Problem:
    """Return the problem without these devices, none of which may be the host. If a limit names
    one, the limit allows less, or cannot be met."""
    costs, limits = problem.costs, problem.limits
    table = without_modes(costs, [m for m in costs.modes if m.device in names])
    platform = replace(
        costs.platform,
        devices=tuple(d for d in costs.platform.devices if d.name not in names),
        links=tuple(k for k in costs.platform.links if not {k.a, k.b} & set(names)),
    )
    memory = {d: size for d, size in limits.memory_bytes.items() if d not in names}
    devices = {t: tuple(d for d in ds if d not in names) for t, ds in limits.devices.items()}
    pinned: dict[str, tuple[str, ...]] = {t: () for t, d in limits.pin.items() if d in names}
    pins = {t: d for t, d in limits.pin.items() if d not in names}
    less = replace(limits, memory_bytes=memory, devices={**devices, **pinned}, pin=pins)
    return replace(problem, costing=replace(table, platform=platform), limits=less)


def speed_up(costs: CostTable, graph: TaskGraph, task: str, factor: float = FASTER) -> CostTable:
    """Return the table with the time, energy and pair terms of one task times `factor`.

    In a fused call only the task's share of the time changes; nothing if no shares are known.
    """

    def scale(mode: Mode) -> Mode:
        if task not in mode.tasks:
            return mode
        part = costs.shares(mode, graph).get(task, 0.0) if mode.fused else 1.0
        return mode.scale(1 - part * (1 - factor))

    extra = {
        (a, b): seconds * (factor if a[0] == task else 1.0)
        for (a, b), seconds in costs.pair_extra_s.items()
    }
    return replace(costs, modes=tuple(scale(m) for m in costs.modes), pair_extra_s=extra)
