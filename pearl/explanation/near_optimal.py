"""Near-optimal plans.

The search finds the best assignment of devices, then the next-best, and so on, by partition of the
remaining assignments (Lawler 1972). After each result, one solve per class of tasks moves that
class off its device while earlier classes stay. Further results have the devices of the best plan:
the best plan without one of its variants, without a fused call, and with one lane fewer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pearl.explanation.resolve import (
    SAME,
    Answer,
    Resolver,
    classes,
    devices_in,
    devices_of,
    equivalents_of,
    placements,
    restrict,
    without_modes,
)
from pearl.formatting import listed, percent
from pearl.planning.plans import Placement, Plan
from pearl.planning.problem import Problem

FAULT = 10 * SAME
"""Fraction by which no plan may be better than a proved best one: both ends of a proof have their
own tolerance."""

MOST = 8
"""Most runner-ups in the list (assumed: nobody reads more)."""


Group = tuple[str, ...]
"""Tasks that share a device."""


@dataclass(frozen=True)
class RunnerUp:
    """A near-optimal plan.

    differs: task → where and how it runs, for the tasks that changed.
    loss: of the plan's own objective (for a robust plan under its samples), as a fraction; negative
        if the plan is not proved to be the best, and this one is better.
    proven: no plan with the same devices (or variants, fused calls or lanes, if these differ) is
        better.
    """

    plan: Plan
    differs: tuple[str, ...]
    loss: float
    proven: bool


@dataclass(frozen=True)
class RunnerUps:
    """The plans within a fraction of the best one, best first.

    complete: proved that no other assignment of devices within the fraction was missed.
    """

    plans: tuple[RunnerUp, ...]
    complete: bool


def runner_ups(resolver: Resolver, within: float) -> RunnerUps:
    """Return plans of at least (1 − within) of the best value. All differ by more than names of
    lanes and interchangeable devices.

    Raises:
        AssertionError: a plan is better than this one, which counts as proved to be the best.
    """
    elsewhere, complete = _other_devices(resolver.with_time_share(0.8), within)
    by_signature: dict[object, RunnerUp] = {}
    for answer in [*elsewhere, *_same_devices(resolver)]:
        plan = answer.plan
        if plan is None:
            continue
        key = signature(plan, resolver.interchangeable)
        if key in {signature(resolver.plan, resolver.interchangeable), *by_signature}:
            continue
        loss = 0.0 if abs(answer.gain) <= SAME else -answer.gain
        if loss <= within + SAME:
            differs = differences(resolver.plan, plan)
            if resolver.plan.status == "optimal" and loss < -FAULT:
                raise AssertionError(
                    f"the plan is proved to be the best, but {'; '.join(differs)} is better by "
                    f"{percent(-loss)}: its proof is wrong, or it belongs to other limits"
                )
            whole = _of_whole_problem(plan, resolver)
            by_signature[key] = RunnerUp(whole, differs, loss, answer.proven)
    best = sorted(by_signature.values(), key=lambda r: (r.loss, r.differs))
    return RunnerUps(tuple(best[:MOST]), complete and len(best) <= MOST)


def signature(plan: Plan, sets: Sequence[tuple[str, ...]] = ()) -> object:
    """Return a key that is equal for plans that differ only in names and orders of lanes. sets: of
    interchangeable devices, whose names are ignored too."""
    lanes: dict[str, list[str]] = {}
    met: dict[str, tuple[int, int]] = {}
    orbit = {d: i for i, same in enumerate(sets) for d in same}
    for t in sorted(plan.tasks, key=lambda t: t.task):
        lanes.setdefault(t.lane, []).append(t.task)
        if t.device in orbit and t.device not in met:
            at = orbit[t.device]
            met[t.device] = at, sum(i == at for i, _ in met.values())
    how = tuple(
        sorted(
            (t.task, str(met.get(t.device, t.device)), t.variant, t.width, bool(t.fused_with))
            for t in plan.tasks
        )
    )
    return how, frozenset(tuple(sorted(tasks)) for tasks in lanes.values())


def differences(best: Plan, other: Plan) -> tuple[str, ...]:
    """Return the differences of another plan, a line each; lanes only if nothing else differs."""
    lines = []
    for task in dict.fromkeys(t.task for t in best.tasks):
        before, after = placements(best, task), placements(other, task)
        if [_place(t) for t in before] == [_place(t) for t in after]:
            continue
        was, now = before[0], after[0]
        parts = [f"in {len(after)} copies"] if len(after) != len(before) else []
        other_devices, own_devices = devices_in(other, [task]), devices_in(best, [task])
        parts += [f"on {listed(other_devices)}"] if other_devices != own_devices else []
        parts += [now.variant] if was.variant != now.variant else []
        if other_devices == own_devices and was.width != now.width:
            parts.append(f"{now.width} {now.width_unit} wide")
        if bool(was.fused_with) != bool(now.fused_with):
            parts.append("in one call" if now.fused_with else "apart")
        lines.append(f"{task} {', '.join(parts or ['shared out otherwise'])}")
    if not lines:
        counts = [len({t.lane for t in p.tasks}) for p in (other, best)]
        lines.append(f"{counts[0]} lanes instead of {counts[1]}")
    return tuple(lines)


def _place(t: Placement) -> tuple[str, str, int, bool, tuple[int, ...]]:
    return t.device, t.variant, t.width, bool(t.fused_with), t.shares


def _of_whole_problem(plan: Plan, resolver: Resolver) -> Plan:
    """The plan of a part of the problem, with the bound of the whole problem."""
    best, regret = resolver.plan, resolver.plan.regret
    bound = best.bound_value
    gap = 1 - bound / plan.value if plan.objective == "makespan" else 1 - plan.value / bound
    gap = max(0.0, gap)
    status: Literal["optimal", "feasible"] = "optimal" if gap <= SAME else "feasible"
    if regret is not None:
        regret = resolver.regret_of(plan, regret)
        status, gap = "optimal" if regret.is_proved else "feasible", regret.gap
    return replace(
        plan,
        regret=regret,
        spec_sha256=best.spec_sha256,
        host=best.host,
        status=status,
        bound_value=bound,
        bound_from=best.bound_from,
        bound_s=min(best.bound_s, plan.period_s),
        gap=gap,
        problem=best.problem,
    )


def _same_devices(resolver: Resolver) -> Iterator[Answer]:
    best = resolver.plan
    tasks_of = dict.fromkeys(t.task for t in best.tasks)
    where = {t: devices_in(best, [t]) for t in tasks_of}
    whole = restrict(resolver.problem, {(t,): d[0] for t, d in where.items() if len(d) == 1}, {})
    modes = whole.costs.modes
    tries: list[Problem] = []
    for t in best.tasks:
        used = [m for m in modes if t.task in m.tasks and m.key == (t.device, t.variant, t.width)]
        if len(used) < sum(t.task in m.tasks for m in modes):
            tries.append(replace(whole, costing=without_modes(whole.costs, used)))
    for tasks in dict.fromkeys(frozenset((t.task, *t.fused_with)) for t in best.tasks):
        if len(tasks) > 1:
            calls = [m for m in modes if frozenset(m.tasks) == tasks]
            tries.append(replace(whole, costing=without_modes(whole.costs, calls)))
    lanes = len({t.lane for t in best.tasks})
    if lanes > len({t.device for t in best.tasks}):
        tries.append(replace(whole, limits=replace(whole.limits, max_lanes=lanes - 1)))
    for n, changed in enumerate(tries):
        answer = resolver.solve(changed, waiting=3 * (len(tries) - n))
        if answer is not None:
            yield answer


@dataclass(frozen=True)
class _Node:
    """The best plan of a part of all device assignments: the classes of `fixed` stay where they
    are, and the classes of `banned` avoid the given devices."""

    answer: Answer
    plan: Plan
    fixed: Mapping[Group, str]
    banned: Mapping[Group, frozenset[str]]


def _one_of_alike(resolver: Resolver, movable: Sequence[Group]) -> dict[Group, frozenset[str]]:
    """Restrict interchangeable devices: the first class that may use them uses only the plan's
    device, else the first one. Exchanges of devices give the other assignments."""
    bans: dict[Group, frozenset[str]] = {}
    for same in resolver.interchangeable:
        for g in movable:
            if set(same) & set(devices_of(g, resolver.problem)):
                device = next((d for d in devices_in(resolver.plan, g) if d in same), same[0])
                bans[g] = bans.get(g, frozenset()) | set(
                    equivalents_of(resolver.interchangeable, device)
                )
                break
    return bans


def _other_devices(resolver: Resolver, within: float) -> tuple[list[Answer], bool]:
    """The next-best assignments of devices, best first, down to the fraction; and whether these are
    proved to be all."""
    allowed = {g: set(devices_of(g, resolver.problem)) for g in classes(resolver.problem)}
    movable = [g for g, devices in allowed.items() if len(devices) > 1]
    heap: list[tuple[float, int, _Node]] = []
    answers: list[Answer] = []
    sure = resolver.plan.status == "optimal"
    own = Answer(resolver.plan, "", sure)
    node, number = _Node(own, resolver.plan, {}, _one_of_alike(resolver, movable)), 0
    while True:
        fixed = dict(node.fixed)
        for g in movable:
            if g in node.fixed:
                continue
            current = devices_in(node.plan, g)
            sure = sure and len(current) == 1  # the search cannot exclude copies on several devices
            device = current[0]
            bans = {**node.banned, g: node.banned.get(g, frozenset()) | {device}}
            if allowed[g] - bans[g]:
                narrow = restrict(resolver.problem, fixed, bans)
                child = resolver.solve(narrow, waiting=2 * len(movable))
                if child is None:
                    return answers, False
                if child.plan is not None:
                    number += 1
                    part = _Node(child, child.plan, dict(fixed), bans)
                    heapq.heappush(heap, (-child.gain, number, part))
                    sure = sure and (child.proven or -child.max_gain > within)
                else:
                    sure = sure and child.proven
            fixed[g] = device
        if not heap or heap[0][0] > within + SAME:
            return answers, sure
        if len(answers) == MOST:
            return answers, False
        _, _, node = heapq.heappop(heap)
        answers.append(node.answer)
