"""`Problem`: the input of a plan, and the same problem for one choice of replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.replicas import ReplicaSplit, copy_name, split_graph, split_limits

if TYPE_CHECKING:
    from pearl.spec.system import System


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a plan. The planner makes it once, and all planning code takes it whole. Use
    `dataclasses.replace` to change it.

    graph: the tasks, edges and states.
    costing: the cost table of the graph, or a function that makes it on first use of `costs`.
        Copies of the problem call the function too: it returns the same table each time.
    limits: the limits that a plan keeps.
    objective: the quantity that a plan optimises, as in `pearl.solve`.
    system: the spec of the problem; None for a user's own graph and costs.
    """

    graph: TaskGraph
    costing: CostTable | Callable[[], CostTable] = field(repr=False)
    limits: Limits = field(default_factory=Limits)
    objective: str = "throughput"
    system: System | None = None

    @cached_property
    def costs(self) -> CostTable:
        """The modes of every task, with the platform: solvers see nothing else of the devices."""
        return self.costing if isinstance(self.costing, CostTable) else self.costing()

    @property
    def spec(self) -> System:
        """The system of a problem that the planner made."""
        assert self.system is not None
        return self.system


def split_problem(problem: Problem, split: ReplicaSplit) -> Problem:
    """Return the problem in which the tasks of `split` run as copies."""
    if not split.tasks:
        return problem
    return replace(
        problem,
        graph=split_graph(problem.graph, split),
        costing=split_costs(problem.costs, split),
        limits=split_limits(problem.limits, split),
    )


def split_costs(costs: CostTable, split: ReplicaSplit) -> CostTable:
    """Return the table for the graph of a choice of replicas: each copy has the modes of its share.

    Pair terms and lane terms hold for copies in proportion to their shares, so that the copies of
    two tasks placed alike add the same total as the whole tasks would.
    """
    if not split.tasks:
        return costs
    whole = sum(split.shares)
    of: dict[int, list[int]] = {}  # share → numbers of its copies
    for i, share in enumerate(split.shares):
        of.setdefault(share, []).append(i)
    modes: list[Mode] = []
    for m in costs.modes:
        if not set(m.tasks) & set(split.tasks):
            modes.append(m)
        elif m.share is not None:
            modes += [
                replace(m, tasks=(copy_name(m.tasks[0], i),), share=None)
                for i in of.get(m.share, ())
            ]

    def copies(task: str) -> list[tuple[str, float]]:
        if task not in split.tasks:
            return [(task, 1.0)]
        return [(copy_name(task, i), share / whole) for i, share in enumerate(split.shares)]

    pairs = {
        ((a, a_key), (b, b_key)): extra * share_a * share_b
        for ((first, a_key), (second, b_key)), extra in costs.pair_extra_s.items()
        for a, share_a in copies(first)
        for b, share_b in copies(second)
    }
    by_lane: list[dict[tuple[str, str], float]] = [
        {
            (a, b): seconds * share_a * share_b
            for (first, second), seconds in terms.items()
            for a, share_a in copies(first)
            for b, share_b in copies(second)
        }
        for terms in (costs.apart_extra_s, costs.shared_extra_s)
    ]
    return CostTable(costs.platform, tuple(modes), pairs, *by_lane)
