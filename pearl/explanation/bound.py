"""The bound of a plan: the lane, link, critical cycle, pace or longest path that sets its period,
with the seconds of each task in it, from the timed graph of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pearl.explanation.resolve import SAME
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import simulate
from pearl.planning.plan_validation import plan_timing
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import TimedGraph


@dataclass(frozen=True)
class BoundPart:
    """A task in the bound of a period, or a fused call, or a transfer `src>device`.

    firings: of the task in the bound.
    seconds: of all these firings.
    share: of the period; for a cycle of several tokens, of as many periods.
    """

    task: str
    firings: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Bound:
    """The bound of a period.

    kind: `pace` if a limit on power sets the period; `path` for makespan: the chain of firings that
        determines the end of the first iteration.
    period_s: the period; the makespan of a path.
    seconds: load of the lane or link in an iteration, or the time around the cycle or along the
        path.
    tokens: on the cycle, else 1. The period is seconds / tokens.
    next_name, next_share: the lane or link with the next-highest load, and its share of the period.
    """

    kind: Literal["lane", "link", "cycle", "pace", "path"]
    name: str
    period_s: float
    seconds: float
    tokens: int
    parts: tuple[BoundPart, ...]
    next_name: str | None
    next_share: float | None


def bound_of(plan: Plan, problem: Problem) -> Bound:
    """Return the bound of the period of a plan."""
    timed, arcs = plan_timing(plan, problem)
    b, period, kind = plan.bottleneck, plan.period_s, str(plan.bottleneck.kind)
    names = ["+".join(tasks) for tasks in _tasks(timed)]
    if plan.objective == "makespan":
        steps, period, kind = _path(timed, arcs), plan.value, "path"
    elif b.kind == "cycle":
        steps = _cycle(plan, timed, arcs)
    else:
        steps = [(i, timed.occupancy_s[i], 0) for i in _busiest(plan, timed)]
    parts: dict[str, list[float]] = {}
    for i, s, _ in steps:
        parts.setdefault(names[i], []).append(s)
    tokens = sum(m for _, _, m in steps) or 1
    others = [] if kind == "path" else sorted((-k.load, k.lane) for k in plan.lanes)
    others = [k for k in others if k[1] != b.name]
    return Bound(
        "pace" if plan.pace_s is not None else kind,  # type: ignore[arg-type]
        " → ".join(parts) if kind == "path" else b.name,
        period,
        sum(s for _, s, _ in steps),
        tokens,
        tuple(BoundPart(n, len(s), sum(s), sum(s) / tokens / period) for n, s in parts.items()),
        others[0][1] if others else None,
        -others[0][0] if others else None,
    )


def _busiest(plan: Plan, timed: TimedGraph) -> tuple[int, ...]:
    """The nodes of the lane or link with the highest load, or the one that the plan names."""
    named, of_node = set(plan.bottleneck.tasks), _tasks(timed)

    def rank(lane: str) -> tuple[bool, int]:
        tasks = {t for i in timed.lanes[lane] for t in of_node[i]}
        return timed.loads_s[lane] >= most * (1 - SAME), len(tasks & named) - len(tasks - named)

    most = max(timed.loads_s.values())
    return timed.lanes[max(timed.lanes, key=rank)]


def _path(timed: TimedGraph, arcs: list[Arc]) -> list[tuple[int, float, int]]:
    """The longest chain of the first iteration: (node, seconds until the next may start, 0)."""
    start = simulate(len(timed.names), arcs, 1)[0].tolist()
    firings = range(len(timed.assignment.expansion.nodes))
    node = max(firings, key=lambda i: start[i] + timed.latency_s[i])
    steps = [(node, timed.latency_s[node], 0)]
    while start[node] > 0:
        waits = ((start[s] + w, w, s) for s, d, w, m in arcs if d == node and m == 0)
        _, seconds, node = max(waits)
        steps.append((node, seconds, 0))
    return steps[::-1]


def _tasks(timed: TimedGraph) -> list[list[str]]:
    """The tasks of each node, or its transfer as `src>device`; copies have the name of their
    task."""
    graph = timed.assignment.expansion.graph
    origin = {t.name: t.part.task if t.part else t.name for t in graph.tasks}

    def named(name: str) -> str:
        task, arrow, to = name.partition(">")
        return origin.get(name) or origin.get(task, task) + arrow + to

    return [[named(n) for n in name.split("+")] for name, _ in timed.names]


def _cycle(plan: Plan, timed: TimedGraph, arcs: list[Arc]) -> list[tuple[int, float, int]]:
    """The arcs of a cycle that takes the whole period: (node, seconds, tokens).

    If there are several cycles, one through the tasks that the plan names is returned.
    """
    named = set(plan.bottleneck.tasks)
    names = timed.names
    inside = [not named.isdisjoint(tasks) for tasks in _tasks(timed)]
    cycle: list[int] = []
    for candidates in ([a for a in arcs if inside[a[0]] and inside[a[1]]], arcs):
        ratio, cycle = howard(len(names), candidates)
        if ratio >= plan.period_s * (1 - SAME) or plan.pace_s is not None:
            break
    longest: dict[tuple[int, int], tuple[float, int]] = {}
    for s, d, w, m in arcs:
        old = longest.get((s, d))
        if old is None or w - plan.period_s * m > old[0] - plan.period_s * old[1]:
            longest[s, d] = w, m
    return [(s, *longest[s, d]) for s, d in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)]
