"""A second program that checks plans: `verify` believes neither a plan nor its proof.

It searches nothing and imports nothing of `pearl.solvers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, problem_faults
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.problem_files import digest
from pearl.verification.model import RefusedError, require
from pearl.verification.proof import check_bound
from pearl.verification.value import SAME, Checked, check_plan, check_timing

__all__ = [
    "SAME",
    "Checked",
    "RefusedError",
    "Verified",
    "check_plan",
    "check_timing",
    "model",
    "proof",
]
__all__ += ["rows", "verify"]


@dataclass(frozen=True)
class Verified:
    """What holds of a plan for the stated costs.

    cost: seconds or joules of an iteration; for makespan, the end of the first one.
    bound: no plan costs less; 0 if nothing is proved.
    gap: 1 − bound / cost.
    """

    cost: float
    bound: float
    gap: float


def verify(
    plan: Plan, graph: TaskGraph, costs: CostTable, limits: Limits, *, objective: str
) -> Verified:
    """Check a plan and its certificate against a problem.

    Args:
        plan: the plan, with its certificate.
        graph: the tasks and edges of the problem.
        costs: what each task costs on each device.
        limits: what a plan may do.
        objective: throughput or power_efficiency.

    Examples:
        >>> plan = pearl.plan(pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"}))
        >>> problem = plan.problem
        >>> verified = pearl.verify(
        ...     plan, problem.graph, problem.costs, problem.limits, objective="throughput"
        ... )
        >>> verified.bound <= verified.cost
        True

    Raises:
        RefusedError: the plan, or its proof, does not hold; names the rule.
        SpecError: the plan is not one of this problem.
    """
    if faults := problem_faults(graph, costs, limits):
        raise SpecError(*faults)
    problem, proof = Problem(graph, costs, limits, objective), plan.certificate
    proof = proof if proof is not None and "trees" in proof else None
    require(plan.objective == objective, "objective", f"{plan.objective}, not {objective}")
    bound = 0.0
    try:
        checked = check_plan(plan, problem, proof["start"] if proof is not None else None)
        if proof is not None:
            row = "problem", "the proof is of another graph, costs or limits"
            require(proof["sha256"] == digest(problem), *row)
            bound = check_bound(proof, problem)
            require(bound <= checked.cost * (1 + SAME), "bound", f"{bound}, above the cost")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RefusedError("proof", f"malformed: {error!r}") from None
    cost, gap = checked.cost, 1 - bound / checked.cost if checked.cost > 0 else 0.0
    words = "" if not bound else "optimal" if gap <= 1.01 * SAME else "gap"
    require(plan.certified == words, "certified", f"it says {plan.certified!r}, not {words!r}")
    said, value = plan.certified_bound, (graph.env_steps or 1) / bound if bound else None
    same = said == value or (said and value and abs(said - value) <= SAME * value)
    require(bool(same), "certified_bound", f"it is {said}; the proof says {value}")
    if words == "optimal" and objective == "throughput":
        text = f"{plan.bound_s:.9g} s is not proved"
        require(plan.bound_s <= bound * (1 + 2 * SAME), "bound_s", text)
    return Verified(cost, bound, max(0.0, gap))
