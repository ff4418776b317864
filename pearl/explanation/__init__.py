"""`explain`: the bound of a plan, the plans that come close to it, and changes that would help.

Every figure is computed, from the timed graph of the plan or by solving a changed problem again,
within one time limit. Changes for which the time ran out are listed, never guessed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from pearl.errors import SpecError
from pearl.explanation.bound import Bound, bound_of
from pearl.explanation.crossover import Crossover, crossover
from pearl.explanation.diagnosis import QuestionAnswer, answers, fastest_by_estimates
from pearl.explanation.near_optimal import RunnerUps, runner_ups
from pearl.explanation.resolve import Resolver
from pearl.explanation.what_if import WhatIf, what_ifs
from pearl.formatting import marked
from pearl.graph.limits import Limits, time_limit_faults
from pearl.graph.task_graph import TaskGraph
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan, plain
from pearl.planning.problem import Problem
from pearl.report.document import Block, Detail, LeadSentence, Section
from pearl.report.terminal import block_text
from pearl.spec.system import System
from pearl.verification import check_plan
from pearl_devices.kernels import kind_of
from pearl_devices.validation import check_type, is_number, quote

__all__ = ["bound", "explain", "near_optimal", "resolve", "sections", "what_if"]


@dataclass(frozen=True)
class Explanation:
    """The reasons for the value of a plan.

    counted: the unit of work: env steps, or iterations of a graph without them.
    throughput, efficiency: work per second and per joule under the plan.
    within: how close a runner-up must come, as a fraction of the plan's value.
    crossovers: batch sizes at which tasks move; empty without a spec.
    left_out: changes for which the time ran out.
    proven: the plan is proved to be the best.
    seconds: time of the explanation.
    regret: for a robust plan, the regret whose samples compare other plans and changes; else None.
    simulated: simulated devices of the platform; texts say so about each.
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
    answers: tuple[QuestionAnswer, ...]
    left_out: tuple[str, ...]
    proven: bool
    seconds: float
    regret: Regret | None = None
    simulated: tuple[str, ...] = ()

    def __str__(self) -> str:
        return block_text(*self.blocks())

    def blocks(self) -> tuple[Block, ...]:
        """Return the sentences and tables of the section of a report."""
        from pearl.explanation.sections import blocks

        return blocks(self)

    def sections(self) -> tuple[Section, ...]:
        """Return the sections of a page."""
        from pearl.explanation.sections import page_sections

        return page_sections(self)

    def details(self) -> tuple[Detail, ...]:
        """Return everything in numbers."""
        from pearl.explanation.sections import details

        return details(self)

    def short_blocks(self) -> tuple[Block, ...]:
        """Return what the short report in a terminal shows."""
        from pearl.explanation.sections import short_blocks

        return short_blocks(self)

    def help_sentence(self) -> LeadSentence:
        """Return what would help most, in one sentence."""
        from pearl.explanation.sections import help_sentence

        return help_sentence(self)

    def to_json(self) -> dict[str, Any]:
        """Return a plain object; each runner-up contains its whole plan."""
        value: dict[str, Any] = plain(_object(self))
        return value


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
    graph: TaskGraph | None = None,
    costs: CostTable | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    *,
    system: System | None = None,
    within: float = 0.05,
    time_limit_s: float = 10.0,
) -> Explanation:
    """Explain a plan: its bound, the plans that come close, and changes that would help.

    The problem is solved again by the plan's own method. For a robust plan, other plans and changes
    are compared under the samples by which it was chosen.

    Args:
        plan: the plan to explain.
        graph: the problem of the plan; default the problem for which the plan was made here. A plan
            from a file has no problem.
        costs: of that problem.
        limits: of that problem.
        system: the spec of the problem, for the batch sizes at which the update would move.
        within: how close a runner-up must come, as a fraction of the plan's value, 0 to 1.
        time_limit_s: seconds for the whole explanation.

    Examples:
        >>> graph = pearl.TaskGraph("two tasks", [pearl.Task("x"), pearl.Task("y")], [])
        >>> platform = pearl.Platform("one", [pearl.Device("a")])
        >>> costs = pearl.CostTable.from_seconds(platform, {"x": {"a": 1.0}, "y": {"a": 2.0}})
        >>> explanation = pearl.explain(pearl.solve(graph, costs))
        >>> explanation.bound.kind, explanation.bound.name, explanation.bound.period_s
        ('lane', 'a.0', 3.0)

    Raises:
        SpecError: the problem is missing or is not the plan's, or a number is out of range.
    """
    problems = check_type("explain: plan", plan, Plan, "a Plan")
    own = graph is None and costs is None
    if (graph is None) != (costs is None) or (own and (system or limits != Limits())):
        problems.append(
            "explain: a problem is a graph and its costs, with limits and system; give both, or "
            "nothing for the problem that the plan was made for"
        )
    if not is_number(within) or not 0 <= within <= 1:
        problems.append(f"within is {quote(within)}; it must be a share from 0 to 1")
    problems += time_limit_faults(time_limit_s)
    if problems:
        raise SpecError(*problems)
    if graph is None or costs is None:
        p = plan.problem
        if p is None:
            raise SpecError(
                "this plan comes from a file and does not hold the graph and costs it was made "
                "for; make it again with pearl.plan or pearl.solve, or give them to "
                "pearl.explain(plan, graph, costs, limits)"
            )
    else:
        p = Problem(graph, costs, limits, plan.objective, system)
        check_plan(plan, p)
    began = time.monotonic()
    bound = bound_of(plan, p)
    plan = replace(plan, problem=p)
    resolver = Resolver(plan, p, began + time_limit_s)
    sentences = tuple(
        QuestionAnswer(marked(s.question, plan.simulated), marked(s.answer, plan.simulated))
        for s in (
            *fastest_by_estimates(resolver.with_time_share(0.1)),
            *answers(resolver.with_time_share(0.2)),
        )
    )
    changes, left_out = what_ifs(resolver.with_time_share(0.5))
    close = runner_ups(resolver.with_time_share(0.6), within)
    moves = _crossovers(resolver, p.system) if p.system else ()
    return Explanation(
        plan.value,
        plan.value_unit,
        plan.objective,
        "env steps" if p.graph.env_steps else "iterations",
        resolver.throughput,
        resolver.efficiency,
        within,
        bound,
        close,
        changes,
        moves,
        sentences,
        left_out,
        plan.status == "optimal",
        time.monotonic() - began,
        plan.regret,
        plan.simulated,
    )


def _crossovers(resolver: Resolver, system: System) -> tuple[Crossover, ...]:
    """Crossovers of every task that takes gradient steps, in the remaining time."""
    results = []
    for task in resolver.problem.graph.tasks:
        if kind_of(task.kernel).structure == "gradient":
            left = resolver.deadline - time.monotonic()
            if left > 0:
                results.append(
                    crossover(system, task.name, method=resolver.method, time_limit_s=left)
                )
    return tuple(c for c in results if c is not None)
