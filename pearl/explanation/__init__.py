"""`explain`: what bounds a plan, which plans come close, and what would change it.

Every figure is computed: from the timed graph of the plan, or by solving again with something
changed, all within one time. What time did not allow is listed, never guessed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from pearl.errors import SpecError
from pearl.explanation.bound import Bound, bound_of
from pearl.explanation.crossover import Crossover, crossover
from pearl.explanation.diagnosis import Sentence, answers
from pearl.explanation.near_optimal import RunnerUps, runner_ups
from pearl.explanation.resolve import Again
from pearl.explanation.what_if import WhatIf, what_ifs
from pearl.graph.limits import Limits, bad_time
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan, Problem, plain
from pearl.spec.system import System
from pearl_devices.given import is_number, shown


@dataclass(frozen=True)
class Explanation:
    """Why a plan is worth what it is worth.

    throughput, efficiency: `counted` (env steps, or iterations of a graph without them) per second
    and per joule of the plan.
    within: how close a runner-up must come, as a share of the plan's value. crossovers: batch sizes
    at which tasks move; empty without a spec. left_out: what time did not allow to solve.
    """

    value: float
    value_unit: str
    objective: str
    counted: str
    throughput: float
    efficiency: float | None
    within: float
    bound: Bound
    runner_ups: RunnerUps
    what_ifs: tuple[WhatIf, ...]
    crossovers: tuple[Crossover, ...]
    answers: tuple[Sentence, ...]
    left_out: tuple[str, ...]
    proven: bool
    seconds: float

    def __str__(self) -> str:
        from pearl.explanation.sections import text

        return text(self)

    def to_json(self) -> dict[str, Any]:
        """A plain object; each runner-up holds its whole plan."""
        found: dict[str, Any] = plain(_object(self))
        return found


def _object(value: Any) -> Any:
    if isinstance(value, Plan):
        return value.to_json()
    if isinstance(value, tuple):
        return [_object(v) for v in value]
    if is_dataclass(value):
        return {f.name: _object(getattr(value, f.name)) for f in fields(value)}
    return value


def explain(
    plan: Plan,
    graph: TaskGraph,
    costs: CostTable,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    *,
    system: System | None = None,
    within: float = 0.05,
    time_limit_s: float = 10.0,
) -> Explanation:
    """Explain a plan of this problem within `time_limit_s` seconds.

    Solves again by the plan's own method. system: the spec behind the problem, for the batch sizes
    at which the update would move. Raises SpecError where plan and problem disagree, and for
    `within` outside 0 … 1 or a time of 0.
    """
    problems = []
    if not is_number(within) or not 0 <= within <= 1:
        problems.append(f"within is {shown(within)}; it must be a share from 0 to 1")
    problems += bad_time(time_limit_s)
    if problems:
        raise SpecError(*problems)
    began = time.monotonic()
    bound = bound_of(plan, graph, costs)
    plan = replace(plan, problem=Problem(graph, costs, limits, system))
    again = Again(plan, graph, costs, limits, began + time_limit_s)
    said = answers(again.until(0.2))
    close = runner_ups(again.until(0.4), within)
    moves = _crossovers(again, system) if system else ()
    changes, left_out = what_ifs(again)
    return Explanation(
        plan.value,
        plan.value_unit,
        plan.objective,
        "env steps" if graph.env_steps else "iterations",
        again.throughput,
        again.efficiency,
        within,
        bound,
        close,
        changes,
        moves,
        said,
        left_out,
        plan.status == "optimal",
        time.monotonic() - began,
    )


def _crossovers(again: Again, system: System) -> tuple[Crossover, ...]:
    """For every task that takes gradient steps."""
    found = []
    for task in again.graph.tasks:
        if task.kernel.kind.startswith("update"):
            left = again.until(0.3).deadline - time.monotonic()
            if left > 0:
                found.append(crossover(system, task.name, method=again.method, time_limit_s=left))
    return tuple(c for c in found if c is not None)
