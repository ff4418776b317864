"""What plans cost under the draws of a robust plan, on the scale by which it was chosen.

The cost of a plan is the mean, or the worst, over the draws of its seconds an iteration over the
least seconds known of each draw: 1 + its regret. Plans of a changed problem are measured by the
least seconds of the plan's own problem, so that their costs can be compared.

Candidates: the plan itself, where the changed problem allows it, and the best plan of the mean of
the drawn times, each draw weighted by 1 over its least seconds. By Jensen's inequality no plan's
mean cost, so none's worst, is below the bound of that solve (`pearl.solvers.robust`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pearl.errors import InfeasibleError, SpecError
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws, Vector, link_parts
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.known_plan import from_start, translate_plan
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.robust import Rival, with_estimates, without_period
from pearl.time_limit import OutOfTimeError


@dataclass(frozen=True)
class Drawn:
    """A plan with its cost under the draws, and a cost that no plan of its problem is below."""

    rival: Rival
    cost: float
    bound: float


@dataclass(frozen=True)
class Scale:
    """The scale of a robust plan.

    kind: mean or worst over the draws. least_s: of each draw, seconds an iteration; 0: no plan.
    costs: of the plan's own problem.
    """

    kind: Literal["mean", "worst"]
    draws: Draws
    least_s: Vector
    costs: CostTable

    @classmethod
    def from_regret(cls, regret: Regret, costs: CostTable) -> Scale:
        """The scale of the plan that has this regret.

        Raises:
            SpecError: the plan does not keep the least seconds of its draws.
        """
        if len(regret.least_s) != regret.draws:
            raise SpecError(
                f"regret: least_s has {len(regret.least_s)} numbers; there are {regret.draws} "
                "draws, and without the least seconds of each no other plan can be compared with "
                "this one: make it anew with pearl.plan or pearl.solve"
            )
        draws = Draws(regret.draws, regret.seed)
        return cls(regret.kind, draws, np.array(regret.least_s, float), costs)

    def ratios(self, rival: Rival, power_w: float | None) -> Vector:
        """Seconds of an iteration over the least of each draw; 1 in a draw without any plan."""
        seconds = rival.seconds(self._draws_of(rival.assignment.costs), power_w)
        some = self.least_s > 0
        return np.where(some, seconds / np.where(some, self.least_s, 1.0), 1.0)

    def cost(self, rival: Rival, power_w: float | None) -> float:
        """The cost of a plan, 1 + its regret of the kind."""
        ratios = self.ratios(rival, power_w)
        return float(ratios.mean() if self.kind == "mean" else ratios.max())

    def solve(self, problem: Problem, search: Search, run: Solve, plan: Plan) -> Drawn:
        """The candidate of least cost of a problem of throughput, and the bound of all plans.

        plan: chosen where no other candidate costs less.

        Raises:
            InfeasibleError, OutOfTimeError: no plan meets the limits, or none was found in time.
        """
        search = replace(search, start=translate_plan(plan, problem))
        candidates = [with_estimates(search.start, problem.costs)] if search.start else []
        bound = 0.0
        try:
            mean, bound = self._of_mean(problem, search, run, plan)
            candidates += [mean] if _is_allowed(mean, problem) else []
        except (InfeasibleError, OutOfTimeError):  # a limit on the period may be what it lacks
            pass
        if not candidates:
            best = from_start(run, problem, search).best
            candidates.append(with_estimates(best, problem.costs))
        power_w = problem.limits.power_w
        chosen, cost = candidates[0], self.cost(candidates[0], power_w)
        for other in candidates[1:]:
            if (less := self.cost(other, power_w)) < cost * (1 - SAME):
                chosen, cost = other, less
        return Drawn(chosen, cost, min(bound, cost))

    def _of_mean(
        self, problem: Problem, search: Search, run: Solve, plan: Plan
    ) -> tuple[Rival, float]:
        """The best plan of the weighted mean of the drawn times, and the bound on every cost. A
        pace is no linear function of watts: where these are drawn the limit on them is left out."""
        draws, some = self._draws_of(problem.costs), self.least_s > 0
        per_s = np.where(some, 1 / np.where(some, self.least_s, 1.0), 0.0)
        if not some.any():
            raise OutOfTimeError
        table = draws.mean_table(problem.graph, problem.costs, per_s / per_s.sum())
        free = without_period(problem)
        limits = replace(free.limits, power_w=None) if draws.watts(problem.costs) else free.limits
        mean = replace(free, costing=table, limits=limits)
        outcome = from_start(run, mean, replace(search, start=translate_plan(plan, mean)))
        least = (float(per_s.sum()) * outcome.bound + float((~some).sum())) / len(some)
        return with_estimates(outcome.best, problem.costs), least

    def _draws_of(self, costs: CostTable) -> Draws:
        """The draws, by which a link whose figures were changed errs as it did before."""
        before = {k.name: k for k in self.costs.platform.links}
        taken = {name for k in before.values() for name in link_parts(k, self.costs)}
        known: dict[str, Vector] = {}
        for link in costs.platform.links:
            was = before.get(link.name)
            if was is not None and was != link:
                pairs = zip(link_parts(link, costs), link_parts(was, self.costs), strict=True)
                known |= {new: self.draws.part(old) for new, old in pairs if new not in taken}
        return replace(self.draws, known=known) if known else self.draws


def rival_of(plan: Plan, problem: Problem) -> Rival:
    """A plan of this problem with its lane orders."""
    timed, orders, _ = plan_orders(plan, problem)
    return Rival(timed.assignment, orders)


def _is_allowed(rival: Rival, problem: Problem) -> bool:
    """Whether a plan keeps the limits on its period by the estimates."""
    period_s = ring_period(build_timed_graph(rival.assignment), rival.orders)
    return cost_of(problem, rival.assignment, period_s)[0] < math.inf
