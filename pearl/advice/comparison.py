"""Two plans under the same samples of their times, and the certainty of which one is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from pearl.formatting import percent
from pearl.planning.draws import Draws, Vector
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan, closed_forms
from pearl.planning.valuation import evaluate_samples

TIE = 1e-3
"""Relative difference below which two plans count as equal in a sample."""


LITTLE = 0.02
"""Two plans are equal if the estimates differ by less than this fraction (assumed), and …"""

CLOSE, MOSTLY = 0.05, 0.9
"""… the samples differ by less than CLOSE in at least MOSTLY of them (assumed)."""

Choice = Literal["plan", "other", "either"]


@dataclass(frozen=True)
class Comparison:
    """A comparison of another plan with a plan.

    ratio: its value over the plan's, by the estimates.
    better, worse: shares of the samples in which it is better or worse by more than TIE.
    lose: the factor by which it is worse in the worst sample, 1 if never. win: better in the best
        one.
    draws: number of samples. near: share of the samples in which the two differ by less than CLOSE.
    closed: one of them rests on closed forms, whose probability no sample gives: only the estimates
        choose, and no percentage is given.
    """

    ratio: float
    better: float
    worse: float
    lose: float
    win: float
    draws: int
    near: float = 0.0
    closed: bool = False

    @property
    def choice(self) -> Choice:
        """The recommended plan: the one that is better in more samples; `either` if the difference
        does not matter."""
        if abs(self.ratio - 1) < LITTLE and (self.closed or self.near >= MOSTLY):
            return "either"
        if self.closed:
            return "other" if self.ratio > 1 else "plan"
        return "other" if (self.better, self.ratio) > (self.worse, 1.0) else "plan"

    @property
    def recommended(self) -> Comparison:
        """The comparison of the recommended plan with the other; if either is, of the other
        plan."""
        if self.choice != "plan":
            return self
        return replace(
            self,
            ratio=1 / self.ratio if self.ratio else float("inf"),
            better=self.worse,
            worse=self.better,
            lose=self.win,
            win=self.lose,
        )

    @property
    def confidence(self) -> float | None:
        """Share of the samples in which the recommendation is right; None for closed forms."""
        if self.closed:
            return None
        return self.near if self.choice == "either" else self.recommended.better

    @property
    def is_disputed(self) -> bool:
        """Whether the estimates favour one plan and more samples favour the other."""
        return self.choice != "either" and self.recommended.ratio < 1


def compare(plan: Plan, other: Plan, draws: Draws) -> Comparison:
    """Compare `other` with `plan`, both in the unit of the plan."""
    own_rates, other_rates = sampled_rates(plan, draws), sampled_rates(other, draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(
            own_rates == other_rates, 1.0, other_rates / own_rates
        )  # both 0 where neither meets a limit
        loss = np.where(own_rates == other_rates, 1.0, own_rates / other_rates)
    return Comparison(
        ratio=number(other) / number(plan),
        better=float(np.mean(factor > 1 + TIE)),
        worse=float(np.mean(factor < 1 - TIE)),
        lose=max(1.0, float(loss.max())),
        win=max(1.0, float(factor.max())),
        draws=draws.number,
        near=float(np.mean(np.abs(factor - 1) < CLOSE)),
        closed=bool(closed_forms(plan, other)),
    )


def number(plan: Plan) -> float:
    """Return work per second, or work per joule for a plan for power efficiency."""
    if plan.objective == "power_efficiency":
        return plan.value
    return plan.rates["env_steps_per_s"] or 1 / plan.period_s


def sampled_rates(plan: Plan, draws: Draws) -> Vector:
    """Return `number` in each sample, shape (draws,). The plan must have its problem."""
    problem = plan.problem
    assert problem is not None
    timed, orders, held = plan_orders(plan, problem)
    samples = evaluate_samples(timed, orders, draws, held=held, power_w=problem.limits.power_w)
    work = problem.graph.env_steps or 1
    return work / (samples.energy_j if plan.objective == "power_efficiency" else samples.period_s)


def how_sure(c: Comparison) -> str:
    """Return the certainty of a plan: `better in 71 % of 200 draws; at worst you lose 1.3×`."""
    if c.choice == "either":
        return no_matter(c)
    if c.closed:
        return "better by closed forms, of which no percentage says how sure they are"
    r = c.recommended
    text = f"better in {share_text(r.better, r.draws)}"
    if r.lose > 1 + TIE:
        text += f"; at worst you lose {ratio_text(r.lose)}"
    if c.is_disputed:
        text += f"; by the estimates alone it is {ratio_text(1 / r.ratio)} slower"
    return text


def no_matter(c: Comparison) -> str:
    """Return `it does not matter (0.6 %)`."""
    return f"it does not matter ({percent(abs(c.ratio - 1))})"


def share_text(part: float, draws: int) -> str:
    """Return `71 % of 200 draws`; rounding never gives all of them or none."""
    percents = round(100 * part)
    if 0 < part < 1 and percents in (0, 100):
        return f"{round(part * draws)} of {draws} draws"
    return f"{percents} % of {draws} draws"


@lru_cache(maxsize=256)
def ratio_text(factor: float) -> str:
    """Return `1.3×`; with three digits near 1."""
    return (
        f"{factor:.2f}×"
        if factor < 1.1
        else f"{factor:,.1f}×"
        if factor < 100
        else f"{factor:,.0f}×"
    )
