"""The cost of plans under the draws of a robust plan, on the scale by which it was chosen.

The cost of a plan is 1 + its regret: the mean, or the worst, over the draws of its seconds per
iteration, divided by the least known seconds of the draw. Plans of a changed problem are divided by
the least seconds of the original problem, so that their costs can be compared.

The candidates are the plan itself, if the changed problem allows it, and the best plan of the mean
of the drawn times, each draw weighted by 1 over its least seconds. By Jensen's inequality, that
solve bounds the mean cost, and so the worst cost, of every plan (`pearl.solvers.robust`).
"""

from __future__ import annotations

import math
from contextlib import suppress
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
from pearl.solvers.known_plan import from_start, translate_plan
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.robust import Rival, build_mean_problem, with_estimates
from pearl.time_limit import OutOfTimeError


@dataclass(frozen=True)
class Drawn:
    """A plan, its cost under the draws, and a lower bound on the cost of every plan."""

    rival: Rival
    cost: float
    bound: float


@dataclass(frozen=True)
class Scale:
    """The scale of a robust plan.

    kind: mean or worst over the draws.
    least_s: least seconds of an iteration in each draw; 0 if the draw has no plan.
    costs: the cost table of the robust plan's problem.
    """

    kind: Literal["mean", "worst"]
    draws: Draws
    least_s: Vector
    costs: CostTable

    @classmethod
    def from_regret(cls, regret: Regret, costs: CostTable) -> Scale:
        """Return the scale of the plan that has this regret.

        Raises:
            SpecError: the plan does not store the least seconds of its draws.
        """
        if len(regret.least_s) != regret.draws:
            raise SpecError(
                f"regret: least_s has {len(regret.least_s)} numbers for {regret.draws} draws; "
                "without the least seconds of each draw, no other plan can be compared with this "
                "plan: make the plan again with pearl.plan or pearl.solve"
            )
        draws = Draws(regret.draws, regret.seed)
        return cls(regret.kind, draws, np.array(regret.least_s, float), costs)

    def ratios(self, rival: Rival, power_w: float | None) -> Vector:
        """Return the seconds of an iteration over the least of each draw; 1 without any plan."""
        seconds = rival.seconds(self._draws_of(rival.assignment.costs), power_w)
        some = self.least_s > 0
        return np.where(some, seconds / np.where(some, self.least_s, 1.0), 1.0)

    def cost(self, rival: Rival, power_w: float | None) -> float:
        """Return the cost of a plan: 1 + its mean or worst regret."""
        ratios = self.ratios(rival, power_w)
        return float(ratios.mean() if self.kind == "mean" else ratios.max())

    def solve(self, problem: Problem, search: Search, run: Solve, plan: Plan) -> Drawn:
        """Return the candidate of least cost for a throughput problem, and a bound on every cost.

        plan: returned if no other candidate costs less.

        Raises:
            InfeasibleError: no plan is within the limits.
            OutOfTimeError: no plan was found in time.
        """
        search = replace(search, start=translate_plan(plan, problem))
        candidates: list[Rival] = []
        if search.start:
            with suppress(InfeasibleError):
                start = with_estimates(search.start, problem.costs)
                candidates.append(start.with_channels(problem, search.deadline))
        bound = 0.0
        # a limit on the period, or channels that do not fit, may be the cause
        with suppress(InfeasibleError, OutOfTimeError):
            mean, bound = self._of_mean(problem, search, run, plan)
            mean = mean.with_channels(problem, search.deadline)
            candidates += [mean] if mean.to_candidate(problem).cost < math.inf else []
        if not candidates:
            best = from_start(run, problem, search).best
            rival = with_estimates(best, problem.costs)
            candidates.append(rival.with_channels(problem, search.deadline))
        power_w = problem.limits.power_w
        chosen, cost = candidates[0], self.cost(candidates[0], power_w)
        for other in candidates[1:]:
            if (less := self.cost(other, power_w)) < cost * (1 - SAME):
                chosen, cost = other, less
        return Drawn(chosen, cost, min(bound, cost))

    def _of_mean(
        self, problem: Problem, search: Search, run: Solve, plan: Plan
    ) -> tuple[Rival, float]:
        """Return the best plan of the weighted mean of the drawn times, and a bound on every
        cost."""
        draws, some = self._draws_of(problem.costs), self.least_s > 0
        per_s = np.where(some, 1 / np.where(some, self.least_s, 1.0), 0.0)
        if not some.any():
            raise OutOfTimeError
        mean = build_mean_problem(problem, draws, per_s / per_s.sum())
        outcome = from_start(run, mean, replace(search, start=translate_plan(plan, mean)))
        least = (float(per_s.sum()) * outcome.bound + float((~some).sum())) / len(some)
        return with_estimates(outcome.best, problem.costs), least

    def _draws_of(self, costs: CostTable) -> Draws:
        """Return the draws; a link with changed figures keeps its relative errors."""
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
    """Return a plan of this problem with its lane orders, and with its full channels if they make
    its period longer."""
    timed, orders, held = plan_orders(plan, problem)
    waiting = replace(timed, arcs=(*timed.arcs, *held))
    longer = ring_period(waiting, orders) > ring_period(timed, orders) * (1 + SAME)
    return Rival(timed.assignment, orders, None, tuple(held) if longer else ())
