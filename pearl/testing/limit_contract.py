"""`LimitContract`: the tests that every further limit passes (`pearl.graph.limits.ADDED`)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import LIMITS, Call, Limit, Limits
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers import METHODS
from pearl.solvers.solver import solve
from pearl.testing.graphs import random_limited
from pearl.verification import RefusedError, check_plan, verify

ORACLE = "pearl.testing.exhaustive"
SEEDS = range(8)
TOLERANCE = 1e-6
"""Relative difference up to which two values count as equal."""


def calls_of(plan: Plan) -> list[Call]:
    """Return the calls of a plan."""
    lanes = {name: k for k, name in enumerate(dict.fromkeys(t.lane for t in plan.tasks))}
    found = [
        Call(tuple(sorted((t.task, *t.fused_with))), t.device, t.variant, t.width, lanes[t.lane])
        for t in plan.tasks
    ]
    return list(dict.fromkeys(found))


class LimitContract:
    """Tests of one limit.

    key: its key in `LIMITS`.
    """

    key: str

    @property
    def limit(self) -> Limit:
        return LIMITS[self.key]

    def problems(self, objective: str) -> Iterator[tuple[Problem, Plan | None, Plan | None]]:
        """Yield small random problems, each with the oracle's plans without and with the limit;
        None if there is none."""
        for seed in SEEDS:
            graph, costs, limits = random_limited(
                seed, most_tasks=4, rates=False, shape="loop" if seed % 2 else "mixed"
            )
            free = self.plan(Problem(graph, costs, limits, objective), ORACLE)
            for value in (self.limit.least, self.limit.least + 1):
                changed: dict[str, Any] = {self.limit.field: value}
                problem = Problem(graph, costs, replace(limits, **changed), objective)
                yield problem, free, self.plan(problem, ORACLE)

    def plan(self, problem: Problem, method: str) -> Plan | None:
        """Return the plan of a method; None if there is none."""
        options = {"objective": problem.objective, "method": method, "limits": problem.limits}
        try:
            return solve(problem.graph, problem.costs, **options)  # type: ignore[arg-type]
        except InfeasibleError:
            return None

    def holds(self, problem: Problem, calls: list[Call]) -> bool:
        (rule,) = (rule for rule in problem.limits.rules if rule.limit.key == self.key)
        return rule.holds(calls)

    def test_every_method_agrees_with_enumeration_or_refuses_the_limit(self) -> None:
        bound, accepted = 0, 0
        for objective in ("throughput", "power_efficiency", "makespan"):
            for problem, free, best in self.problems(objective):
                bound += free is not None and (best is None or best.value != free.value)
                for name, method in METHODS.items():
                    if objective not in method.objectives or "." in name:
                        continue
                    plan, refusal = None, ""
                    try:
                        plan = self.plan(problem, name)
                    except SpecError as error:
                        refusal = str(error)
                    if refusal:
                        named = f"limits.{self.key}", "which is not installed"
                        assert any(text in refusal for text in named), refusal
                        continue
                    accepted += 1
                    if best is None or plan is None:
                        assert plan is None
                        assert best is None or name != "milp", (problem.graph.name, name)
                        continue
                    assert self.holds(problem, calls_of(plan)), (problem.graph.name, name)
                    sign = 1 if objective == "makespan" else -1
                    close = TOLERANCE * abs(best.value)
                    assert sign * (plan.value - best.value) >= -close, (problem.graph.name, name)
                    if plan.status == best.status == "optimal":
                        assert plan.value == pytest.approx(best.value, rel=TOLERANCE)
                    assert plan.status == "optimal" or name != "milp"
        assert accepted
        assert bound, "the limit changes no plan of the random problems"

    def test_more_calls_never_mend_a_plan(self) -> None:
        dice = random.Random(0)
        for problem, free, _ in self.problems("throughput"):
            calls = calls_of(free) if free else []
            dice.shuffle(calls)
            held = [self.holds(problem, calls[:n]) for n in range(len(calls) + 1)]
            assert held == sorted(held, reverse=True)

    def test_a_conflict_names_the_limit_and_the_verifier_refuses_a_plan_beyond_it(self) -> None:
        for problem, free, best in self.problems("throughput"):
            if free is not None and best is None:
                with pytest.raises(InfeasibleError) as found:
                    solve(problem.graph, problem.costs, limits=problem.limits)
                kinds = [entry["kind"] for entry in found.value.conflict]
                assert self.limit.kind in kinds or self.key in str(found.value)
            if free is not None and not self.holds(problem, calls_of(free)):
                with pytest.raises(RefusedError) as refused:
                    check_plan(free, problem)
                assert refused.value.row == self.key

    def test_a_proof_of_optimality_holds(self) -> None:
        for problem, _, best in self.problems("throughput"):
            if best is not None:
                of = problem.graph, problem.costs
                plan = solve(*of, limits=problem.limits, certify=True)
                verify(plan, *of, problem.limits, objective="throughput")
                assert plan.certified == "optimal"
                assert plan.bound_s == pytest.approx(best.bound_s, rel=TOLERANCE)

    def test_a_value_below_the_least_is_refused(self) -> None:
        for wrong in (self.limit.least - 1, 1.5, math.inf, "2"):
            with pytest.raises(SpecError, match=self.key):
                Limits(**{self.limit.field: wrong})  # type: ignore[arg-type]
