"""What a limit costs: a part of `python -m benchmarks.solver`.

A limit that the free plan keeps may cost hardly anything. A limit that is 1 % tighter than the free
plan may cost little more. Values of plans of `pearl.solve` over those of the free plan, in
CPU-seconds of this process and of those below it (`clock.counted`). Code is warm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.bars import Bar, Part, at_most
from benchmarks.solver.clock import counted
from benchmarks.solver.instances import large
from benchmarks.solver.loops import Loop, pipeline, ring
from pearl import solve
from pearl.graph.limits import Limits
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.verification import check_plan

LOOSE, TIGHT, SHARE, PAIRS = 1.01, 1.03, 0.99, 3
"""Asked: value over that of the free plan at most, for a limit that does not bind and for a tighter
one. What a tighter limit allows of the free plan's use, and number of its pairs that are apart."""


@dataclass(frozen=True)
class Case:
    """A problem without limits. seconds: time limit of each solve."""

    make: Callable[[], Loop]
    seconds: float
    objective: str = "throughput"


CASES = {
    "ring of 60": Case(lambda: ring(2, 1.0, 4, tasks=60, devices=4), 2.0),
    "ring of 200": Case(lambda: ring(1, 1.0, 4), 6.0),
    "layered, 300": Case(lambda: large(0, 1.0, tasks=300, devices=8, shape="layered"), 5.0),
    "sparse, 125": Case(lambda: large(0, 1.0, tasks=125), 3.0),
    "pipeline of 24": Case(lambda: pipeline(1, 24, 4, 8, equal=True), 3.0),
    "ring of 60, energy": Case(
        lambda: ring(2, 1.0, 4, tasks=60, devices=4), 2.0, "power_efficiency"
    ),
}
"""Name → a problem."""


def powered(loop: Loop, seed: int = 0) -> Loop:
    """The problem with 50 to 300 W of every mode, and 20 W of every idle device."""
    graph, costs = loop
    r = np.random.default_rng(seed)
    modes = tuple(
        replace(m, estimate=replace(m.estimate, energy_j=m.estimate.occupancy_s * float(w)))
        for m, w in zip(costs.modes, r.uniform(50, 300, len(costs.modes)), strict=True)
    )
    devices = tuple(
        replace(d, idle_power_w=20.0, active_power_w=300.0) for d in costs.platform.devices
    )
    platform = replace(costs.platform, devices=devices)
    return graph, replace(costs, platform=platform, modes=modes)


def lanes_of(plan: Plan) -> dict[str, list[str]]:
    """Device → the tasks of its only lane."""
    return {lane.device: [e.task for e in lane.order] for lane in plan.lanes if lane.width}


def kept(plan: Plan, costs: CostTable) -> Iterator[tuple[str, Limits]]:
    """Limits that the plan keeps."""
    yield "power_w", Limits(power_w=1e12)
    yield "max_lanes", Limits(max_lanes=len(costs.platform.devices))
    firsts = [tasks[0] for tasks in lanes_of(plan).values()]
    yield "apart", Limits(apart=tuple(pairwise(firsts)))


def tighter(plan: Plan, loop: Loop) -> Iterator[tuple[str, Limits]]:
    """Limits 1 % below what the plan uses."""
    yield "power_w", Limits(power_w=SHARE * plan.power_w)
    graph, rows = loop[0], sorted(lanes_of(plan).values(), key=len, reverse=True)
    group = {t.name: t.group or t.name for t in graph.tasks}
    pairs = [(row[0], t) for row in rows for t in row[:0:-1] if group[t] != group[row[0]]]
    yield "apart", Limits(apart=tuple(dict(pairs).items())[:PAIRS])
    size = {t.name: t.kernel.resident_bytes for t in graph.tasks}
    used = {d: sum(size[t] for t in tasks) for d, tasks in lanes_of(plan).items()}
    fullest = max(used, key=used.__getitem__)
    yield "memory_bytes", Limits(memory_bytes={fullest: SHARE * used[fullest]})
    if plan.objective == "power_efficiency":
        yield "period_s", Limits(period_s=SHARE * plan.period_s)


def solved(case: Case, loop: Loop, limits: Limits) -> Plan:
    """A checked plan on one core."""
    graph, costs = loop
    with counted():
        plan = solve(
            graph, costs, objective=case.objective, limits=limits, time_limit_s=case.seconds,
            workers=1,
        )  # fmt: skip
    check_plan(plan, Problem(graph, costs, limits, case.objective))
    return plan


def run(quick: bool, data: Path | None) -> Part:
    for case in list(CASES.values())[:: len(CASES) - 1]:
        solved(case, powered(case.make()), Limits())  # loads compiled code
    rows, bars, values = [], list[Bar](), dict[str, dict[str, float]]()
    for name, case in list(CASES.items())[: 1 if quick else None]:
        loop = powered(case.make())
        free = solved(case, loop, Limits())
        found = values[name] = {"free": free.value, "bound": free.bound_value}
        limited = [(f"{limit} that does not bind", LOOSE, x) for limit, x in kept(free, loop[1])]
        limited += [(f"{limit} 1 % tighter", TIGHT, x) for limit, x in tighter(free, loop)]
        for limit, most, limits in limited:
            plan = solved(case, loop, limits)
            found[limit] = free.value / plan.value
            rows.append([name, limit, f"{free.value:.6g}", f"{plan.value:.6g}", plan.status])
            bars.append(at_most(f"{name}, {limit}: times the free plan", found[limit], most))
    left_out = ["all but the ring of 60"] if quick else []
    columns = ["problem", "limit", "value without", "value with", "status"]
    return Part("what limits cost", columns, rows, bars, left_out, values)
