"""Optional fusions as columns: one relaxed search space for every set of fused calls.

In the relaxed space each member of a fused call has one more option for each of the call's modes.
The first member takes all of the call's time, the others take none. A plan that runs the call is a
solution of the relaxed space: the call's time passes within the members' firings, in an order that
their edges allow. So a bound of the relaxed space holds for every set of fused calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import InfeasibleError
from pearl.graph.period import Unit, expand
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import ReplicaSplit, enumerate_splits
from pearl.solvers.model.name_checks import check_names
from pearl.solvers.model.search_space import (
    SearchSpace,
    allows,
    slack_choices,
    space_of,
    useful_modes,
)
from pearl_devices import Platform

FEW = 3
"""Number of optional fusions up to which every set of them is a search space of its own."""


@dataclass(frozen=True)
class FusionSpace:
    """One choice of replicas and slack, with every set of fused calls.

    problem: with the graph of the copies. graph: that graph with its slack.
    units: the fused calls that have modes.
    """

    problem: Problem
    graph: TaskGraph
    units: tuple[Unit, ...]

    def exact(self, fused: Collection[Unit] = ()) -> SearchSpace:
        """Return the search space of one set of fused calls.

        Raises:
            SpecError: a fused call would wait for itself.
            InfeasibleError: some task has no mode left, or no device has memory for a class.
        """
        return space_of(expand(self.graph, tuple(fused)), self.problem)

    @cached_property
    def calls(self) -> tuple[tuple[Unit, Mode], ...]:
        """The fused calls and their modes that count."""
        found, costs = [], self.problem.costs
        room = {d.name: d.unit_memory_bytes for d in costs.platform.devices}
        for unit in self.units:
            modes = [m for m in costs.of(*unit) if allows(m, self.problem.limits)]
            found += [
                (unit, m) for m in useful_modes(modes, costs) if m.unit_bytes <= room[m.device]
            ]
        return tuple(found)

    @cached_property
    def relaxed(self) -> SearchSpace:
        """The relaxed space: every member of a fused call may be on each device that has room for
        its own memory, and needs no more than the least of its memory alone and fused."""
        costs, graph = self.problem.costs, self.graph
        loose = space_of(expand(graph), self.problem, frozenset({"memory"}))
        options = [list(modes) for modes in loose.options]
        unit = {tasks[0]: u for u, tasks in enumerate(loose.expansion.units)}
        for call, m in self.calls:
            for t in call:
                options[unit[t]].append(self.part(m, t))
        alone = {t.name: t.kernel.resident_bytes for t in graph.tasks}
        saved = dict.fromkeys(alone, 0.0)
        for call in self.units:
            together = sum(alone[t] for t in call) - graph.kernel_of(call).resident_bytes
            saved.update({t: saved[t] + max(0.0, together) for t in call})
        sizes = [
            max(0.0, size - sum(saved[loose.expansion.units[u][0]] for u in members))
            for members, size in zip(loose.classes, loose.memory_bytes, strict=True)
        ]
        given = self.problem.limits.memory_bytes
        devices = costs.platform.devices
        return replace(
            loose,
            costs=replace(costs, platform=self._free_payers()),
            options=tuple(map(tuple, options)),
            memory_bytes=tuple(sizes),
            capacity_bytes={
                d.name: min(d.memory_bytes, given.get(d.name, math.inf)) for d in devices
            },
            unit_capacity_bytes={d.name: d.unit_memory_bytes for d in devices},
            rules=(),  # an option of this space is no call of a plan
        )

    def part(self, m: Mode, task: str) -> Mode:
        """Return the option of a member of a fused call in the relaxed space."""
        first = task == min(m.tasks, key=[t.name for t in self.graph.tasks].index)
        firings = self.graph.repetition[task]
        part = m.scale(1 / firings if first else 0.0)
        return replace(
            part, variant=f"{m.variant} of {m.tasks}", unit_bytes=m.unit_bytes if first else 0.0
        )

    def _free_payers(self) -> Platform:
        """Return the platform without the payments that differ between sets of fused calls: a call
        sends one message for many, and may change the lane that pays."""
        platform = self.problem.costs.platform
        many = any(self.graph.repetition[t] > 1 for unit in self.units for t in unit)
        wide = any(min(d.max_lanes, d.width) > 1 for d in platform.devices)
        links = tuple(
            replace(
                k,
                per_message_s=0.0 if many else k.per_message_s,
                paid_by="nobody" if wide and k.paid_by == "lane" else k.paid_by,
            )
            for k in platform.links
        )
        return replace(platform, links=links)


def fusion_spaces(
    problem: Problem, only: Sequence[ReplicaSplit] | None = None
) -> list[FusionSpace]:
    """Return a space for each choice of replicas and slack if optional fusions are many, else an
    empty list: then `search_spaces` has every set of them.

    only: the choices of replicas; None: all.
    """
    check_names(problem)
    frugal = problem.objective != "throughput" or problem.limits.power_w is not None
    if problem.costs.lane_terms:
        return []
    found = []
    for split in enumerate_splits(problem.graph, problem.limits) if only is None else only:
        part = split_problem(problem, split)
        units = part.costs.fused_units
        many = any(part.graph.repetition[t] > 1 for unit in units for t in unit)
        if len(units) <= FEW or (frugal and many):
            return []
        for slack in slack_choices(part.graph, part.limits):
            space = FusionSpace(part, part.graph.with_slack(slack), units)
            try:
                space.exact()
            except InfeasibleError:
                return []
            found.append(space)
    return found
