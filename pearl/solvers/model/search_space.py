"""Search spaces: the replicas, fusions, slack, modes, lanes and memory that a solver chooses from.

A `SearchSpace` is one choice of replicas, fused modes and slack, with its own expansion. The space
excludes all that the limits forbid for a single task. `violates_coupling` checks the rules that
couple tasks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import ADDED, LIMITS, Call, Limits, Rule
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.period import Expansion, Unit, expand
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import ReplicaSplit, enumerate_splits
from pearl.planning.timing import Assignment
from pearl.solvers.model.infeasibility import memory_error, no_common_device_error, no_mode_error
from pearl.solvers.model.name_checks import check_names
from pearl.solvers.model.state_memory import (
    bytes_needed,
    bytes_on_host,
    least_channel_bytes,
    owners,
)


@dataclass(frozen=True)
class SearchSpace:
    """One choice of replicas, fused modes and slack.

    expansion: the single-rate graph of this choice; a unit is a task or a fused call.
    costs: the modes of the tasks and copies.
    options: unit → the modes that the unit may take.
    classes: the units that share a device, one tuple per class.
    memory_bytes: class → memory that the class needs on its device, with the channels that it reads
        at their least capacities.
    read_bytes: unit → bytes of these channels.
    capacity_bytes: device → memory within the limits.
    lanes: device → largest number of lanes.
    max_lanes: largest number of lanes on all devices together.
    unit_capacity_bytes: device → memory of each of its units.
    apart: pairs of units that must not share a lane.
    rules: further limits on the places of calls (`pearl.graph.limits.ADDED`).
    """

    expansion: Expansion
    costs: CostTable
    options: tuple[tuple[Mode, ...], ...]
    classes: tuple[tuple[int, ...], ...]
    memory_bytes: tuple[float, ...]
    read_bytes: tuple[float, ...]
    capacity_bytes: Mapping[str, float]
    lanes: Mapping[str, int]
    max_lanes: float
    unit_capacity_bytes: Mapping[str, float]
    apart: tuple[tuple[int, int], ...]
    rules: tuple[Rule, ...] = ()

    def violates_coupling(self, a: Assignment) -> bool:
        """Return whether an assignment of this space breaks a rule that couples tasks."""
        need: dict[str, float] = {}
        for members, size in zip(self.classes, self.memory_bytes, strict=True):
            devices = {a.modes[u].device for u in members}
            if len(devices) > 1:
                return True
            device = devices.pop()
            need[device] = need.get(device, 0.0) + size
        if any(size > self.capacity_bytes[d] * (1 + 1e-12) for d, size in need.items()):
            return True
        if any(a.share_lane(u, w) for u, w in self.apart):
            return True
        on_units = dict(a.unit_bytes)
        for u, mode in enumerate(a.modes):
            on_units[mode.device, a.lanes[u]] += self.read_bytes[u]
        for (device, _), size in on_units.items():
            if size > self.unit_capacity_bytes[device] * (1 + 1e-12):
                return True
        width: dict[tuple[str, int], int] = {}
        for u, mode in enumerate(a.modes):
            key = (mode.device, a.lanes[u])
            width[key] = max(mode.width, width.get(key, 0))
        taken: dict[str, list[int]] = {}
        for (device, _), w in width.items():
            taken.setdefault(device, []).append(w)
        for d in self.costs.platform.devices:
            widths = taken.get(d.name, [])
            if len(widths) > self.lanes[d.name] or sum(widths) > d.width:
                return True
        return len(width) > self.max_lanes or self.breaks_rule(self.calls(a))

    def call(self, unit: int, mode: Mode, lane: int) -> Call:
        """Return the call of a unit at a place."""
        tasks = self.expansion.units[unit]
        return Call(tasks, mode.device, mode.variant, mode.width, lane)

    def calls(self, a: Assignment) -> list[Call]:
        """Return the calls of an assignment; none if no rule asks for them."""
        if not self.rules:
            return []
        places = zip(a.modes, a.lanes, strict=True)
        return [self.call(u, mode, lane) for u, (mode, lane) in enumerate(places)]

    def breaks_rule(self, calls: Sequence[Call]) -> bool:
        """Return whether no plan with these calls keeps the rules."""
        return any(not rule.holds(calls) for rule in self.rules)

    def bytes_on_unit(self, unit: int, mode: Mode) -> float:
        """Return the bytes that a unit keeps on each unit of its lane: those of its mode, and the
        channels that it reads at their least capacities."""
        return mode.unit_bytes + self.read_bytes[unit]

    @cached_property
    def lanes_couple(self) -> bool:
        """Whether more than the loads depends on the units that share a lane."""
        return bool(self.apart or self.rules or self.costs.lane_terms) or any(
            self.unit_capacity_bytes[m.device] < math.inf and self.bytes_on_unit(u, m) > 0
            for u, options in enumerate(self.options)
            for m in options
        )

    @cached_property
    def pair_terms(self) -> tuple[tuple[int, int, int, int, float], ...]:
        """The pair terms of the options: unit, option, other unit, its option, seconds of a
        firing."""
        number = {
            (tasks[0], m.key): (u, o)
            for u, tasks in enumerate(self.expansion.units)
            for o, m in enumerate(self.options[u])
            if len(tasks) == 1
        }
        terms = self.costs.pair_extra_s.items()
        known = ((a, b, s) for (a, b), s in terms if a in number and b in number)
        return tuple((*number[a], *number[b], seconds) for a, b, seconds in known)

    @cached_property
    def lane_terms(self) -> tuple[tuple[int, int, float, bool], ...]:
        """The lane terms: unit, other unit, seconds of a call, whether the term counts on one
        lane."""
        x, found = self.expansion, []
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        for a, b, seconds, shared in self.costs.lane_terms:
            calls = x.graph.repetition[a] if len(x.units[unit[a]]) > 1 else 1
            if unit[a] != unit[b]:
                found.append((unit[a], unit[b], seconds * calls, shared))
        return tuple(found)

    @cached_property
    def on_device(self) -> tuple[dict[str, tuple[Mode, ...]], ...]:
        """The modes of each unit by device."""
        by_device: list[dict[str, tuple[Mode, ...]]] = []
        for options in self.options:
            there: dict[str, list[Mode]] = {}
            for m in options:
                there.setdefault(m.device, []).append(m)
            by_device.append({device: tuple(modes) for device, modes in there.items()})
        return tuple(by_device)

    @cached_property
    def serial_s(self) -> float:
        """An upper bound on periods: all firings in sequence, each in its slowest mode."""
        x, total = self.expansion, 0.0
        for u, options in enumerate(self.options):
            total += x.firings(u) * max(m.estimate.latency_s for m in options)
        extras = [(a, extra) for ((a, _), _), extra in self.costs.pair_extra_s.items()]
        for a, extra in [*extras, *((a, extra) for a, _, extra, _ in self.costs.lane_terms)]:
            total += max(extra, 0.0) * x.graph.repetition.get(a, 0)
        slowest = [
            (k.latency_s + k.per_message_s, 1 / k.bytes_per_s) for k in self.costs.platform.links
        ]
        if slowest:
            fixed, per_byte = max(f for f, _ in slowest), max(b for _, b in slowest)
            for e in x.graph.edges:
                total += 2 * x.graph.repetition[e.src] * (fixed + e.bytes * per_byte)
        return total


def search_spaces(
    problem: Problem,
    ignore: frozenset[str] = frozenset(),
    only: Sequence[ReplicaSplit] | None = None,
) -> list[SearchSpace]:
    """Return every choice of replicas, fused modes and slack in which each task has a mode.

    ignore: limits to leave out ("memory"), to find the limit that excludes all plans.
    only: the choices of replicas; None: all.

    Raises:
        SpecError: a name does not exist.
        InfeasibleError: some task has no mode left.
    """
    spaces, first_error = [], None
    for space in each_space(problem, ignore, only):
        if isinstance(space, SearchSpace):
            spaces.append(space)
        else:
            first_error = first_error or space
    if not spaces and first_error:
        raise first_error
    return spaces


def each_space(
    problem: Problem,
    ignore: frozenset[str] = frozenset(),
    only: Sequence[ReplicaSplit] | None = None,
) -> Iterator[SearchSpace | InfeasibleError]:
    """Yield `search_spaces` one by one; an error replaces a space in which a task has no mode.

    Raises:
        SpecError: a name does not exist.
    """
    check_names(problem)
    expand(problem.graph)  # raises for a deadlock of the graph; fusions with a deadlock are skipped
    for split in enumerate_splits(problem.graph, problem.limits) if only is None else only:
        part = split_problem(problem, split)
        for slack in slack_choices(part.graph, part.limits):
            relaxed = part.graph.with_slack(slack)
            for fused in fusion_choices(part.costs):
                try:
                    expansion = expand(relaxed, fused)
                except SpecError:
                    continue
                try:
                    space = space_of(expansion, part, ignore)
                except InfeasibleError as error:
                    yield error
                else:
                    yield space


def fusion_choices(costs: CostTable) -> Iterator[tuple[Unit, ...]]:
    """Yield every set of disjoint fused units that have modes, the empty set first."""
    sets = costs.fused_units
    for size in range(len(sets) + 1):
        for chosen in itertools.combinations(sets, size):
            members = [t for unit in chosen for t in unit]
            if len(members) == len(set(members)):
                yield chosen


def slack_choices(graph: TaskGraph, limits: Limits) -> list[dict[EdgeKey, int]]:
    """Return the choices of slack, each at the limits: more slack never makes the period longer.

    If edges with the keys prefetch and priority_staleness exist, they share the limit of
    priority_staleness, and each split of it is a choice.
    """
    keyed = {key: e for key, e in key_edges(graph.edges).items() if e.limit}
    fixed = {
        key: max(e.slack, getattr(limits, e.limit or ""))
        for key, e in keyed.items()
        if e.limit not in ("prefetch", "priority_staleness")
    }
    ahead = [key for key, e in keyed.items() if e.limit == "prefetch"]
    deferred = [key for key, e in keyed.items() if e.limit == "priority_staleness"]
    if not deferred:
        return [fixed | {key: max(keyed[key].slack, limits.prefetch) for key in ahead}]
    most = min(limits.prefetch, limits.priority_staleness) if ahead else 0
    return [
        fixed
        | {key: max(keyed[key].slack, k) for key in ahead}
        | {key: max(keyed[key].slack, limits.priority_staleness - k) for key in deferred}
        for k in range(most + 1)
    ]


_ALONE = (*(LIMITS[key] for key in ("pin", "devices", "variants")), *ADDED)


def allows(mode: Mode, limits: Limits) -> bool:
    """Return whether the limits allow a mode by itself."""
    calls = (Call(mode.tasks, mode.device, mode.variant, mode.width, 0),)
    given = ((limit.holds, getattr(limits, limit.field)) for limit in _ALONE)
    return all(holds(value, calls) for holds, value in given if holds and value)


Rank = Callable[[Mode], tuple[float, ...]]
"""Numbers of a mode; one with less of each is better."""


def select_undominated(modes: Sequence[Mode], rank: Rank, costs: CostTable) -> list[int]:
    """Return the numbers of the modes that no other mode of their device beats in every number of
    their rank. Modes with a pair term stay, and the parts of fused calls among modes of one task
    (`fusion_space`)."""
    special = {choice for pair in costs.pair_extra_s for choice in pair}
    parts = len({m.tasks for m in modes}) > 1
    paired = [parts if m.fused else (m.tasks[0], m.key) in special for m in modes]
    ranks = [rank(m) for m in modes]
    best = [o for o, kept in enumerate(paired) if kept]
    rivals: dict[str, list[tuple[float, ...]]] = {}
    for o in sorted(range(len(modes)), key=lambda o: ranks[o]):
        better = rivals.setdefault(modes[o].device, [])
        beaten = any(all(a <= b for a, b in zip(r, ranks[o], strict=True)) for r in better)
        if not paired[o] and not beaten:
            best.append(o)
            better.append(ranks[o])
    return sorted(best)


def useful_modes(modes: Sequence[Mode], costs: CostTable) -> tuple[Mode, ...]:
    """Return the modes that no other mode of the device beats in time, energy, width and memory of
    a unit. Modes with a pair term stay."""

    def rank(m: Mode) -> tuple[float, ...]:
        e = m.estimate
        return e.latency_s, e.occupancy_s, e.energy_j, m.width, m.unit_bytes

    return tuple(modes[o] for o in select_undominated(modes, rank, costs))


def space_of(
    x: Expansion,
    problem: Problem,
    ignore: frozenset[str] = frozenset(),
    *,
    every_mode: bool = False,
) -> SearchSpace:
    """Return the search space of one expansion of the problem's graph.

    every_mode: keep modes that another mode beats in every respect.

    Raises:
        InfeasibleError: some task has no mode left, or no device has memory for a class of tasks.
    """
    costs, limits = problem.costs, problem.limits
    platform = costs.platform
    unit_capacity = {
        d.name: math.inf if "memory" in ignore else d.unit_memory_bytes for d in platform.devices
    }
    read = least_channel_bytes(x, problem.graph)
    options = [
        [
            m
            for m in costs.of(*u)
            if allows(m, limits) and m.unit_bytes + size <= unit_capacity[m.device] * (1 + 1e-12)
        ]
        for u, size in zip(x.units, read, strict=True)
    ]
    for unit, modes, size in zip(x.units, options, read, strict=True):
        if not modes:
            raise no_mode_error(unit, problem, size)
    capacity = {
        d.name: math.inf
        if "memory" in ignore
        else min(d.memory_bytes, limits.memory_bytes.get(d.name, math.inf))
        for d in platform.devices
    }
    classes, reasons = _classes(x, limits)
    kinds = {d.name: d.kind for d in platform.devices}
    host_bytes = [bytes_on_host(x, members, options, kinds) for members in classes]
    owner = owners(x)
    channels = [sum(read[u] for u in members) for members in classes]
    needs = [
        bytes_needed(x, members, owner) - on_host + held
        for members, on_host, held in zip(classes, host_bytes, channels, strict=True)
    ]
    capacity[platform.host] -= sum(host_bytes)
    for members, size, held in zip(classes, needs, channels, strict=True):
        common = set.intersection(*({m.device for m in options[u]} for u in members))
        names = [t for u in members for t in x.units[u]]
        if not common:
            raise no_common_device_error(names, reasons, options, members, limits, x)
        fits = {d for d in common if size <= capacity[d]}
        if not fits:
            room = {d: capacity[d] for d in sorted(common)}
            raise memory_error(x, members, size, held, room, platform)
        for u in members:
            options[u] = [m for m in options[u] if m.device in fits]
    most = limits.max_lanes or math.inf
    lanes = {d.name: min(d.max_lanes, d.width, most) for d in platform.devices}
    return SearchSpace(
        x,
        costs,
        tuple(
            tuple(modes) if every_mode or limits.rules else useful_modes(modes, costs)
            for modes in options
        ),
        tuple(tuple(c) for c in classes),
        tuple(needs),
        tuple(read),
        capacity,
        {d: int(n) for d, n in lanes.items()},
        most,
        unit_capacity,
        _apart(x, limits),
        limits.rules,
    )


def _apart(x: Expansion, limits: Limits) -> tuple[tuple[int, int], ...]:
    """Return the pairs of units that must not share a lane.

    Raises:
        InfeasibleError: a fused call has both tasks of a pair.
    """
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    pairs = dict.fromkeys((unit[a], unit[b]) for a, b in limits.apart)
    for a, b in limits.apart:
        if unit[a] == unit[b]:
            raise InfeasibleError(
                f"tasks {a} and {b} must not share a lane (limits.apart), but one call runs both",
                [{"kind": "apart", "name": f"{a}, {b}", "need": 2, "limit": 1, "unit": "lanes"}],
            )
    return tuple(pairs)


def _classes(x: Expansion, limits: Limits) -> tuple[list[list[int]], dict[str, str]]:
    """Return the units that share a device, and for each task the rule that holds it there."""
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    reasons: dict[str, str] = {}
    together = [("limits.together", pair) for pair in limits.together]
    for reason, tasks in (*x.graph.ties.items(), *together):
        if len(tasks) > 1:
            reasons.update({t: reasons.get(t, reason) for t in tasks})
    classes = x.graph.classes((*limits.together, *x.units))
    return [sorted({unit[t] for t in tasks}) for tasks in classes], reasons


def longest_s(graph: TaskGraph, limits: Limits) -> float:
    """Return the longest period within the limits."""
    longest = limits.period_s or math.inf
    if limits.min_throughput_per_s:
        longest = min(longest, (graph.env_steps or 1) / limits.min_throughput_per_s)
    return longest


def without_numbers(problem: Problem) -> Problem:
    """Return the problem without limits on period, throughput and power."""
    limits = replace(problem.limits, period_s=None, min_throughput_per_s=None, power_w=None)
    return replace(problem, limits=limits)


def cost_of(problem: Problem, a: Assignment, period_s: float) -> tuple[float, float]:
    """Return the cost of an assignment in seconds or joules of an iteration, and the paced period.

    The cost is infinite if a limit on period or power cannot be met.
    """
    paced = a.paced_s(period_s, problem.limits.power_w)
    if paced > longest_s(a.expansion.graph, problem.limits) * (1 + 1e-9):
        return math.inf, paced
    return (paced if problem.objective == "throughput" else a.energy_j(paced)), paced
