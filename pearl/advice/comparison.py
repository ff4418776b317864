"""Two plans under the same draws of their times: how sure it is which one is better."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pearl.planning.draws import Draws, Vector
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan
from pearl.planning.valuation import valued

TIE = 1e-3
"""Relative difference below which two plans count as equal in a draw."""


@dataclass(frozen=True)
class Comparison:
    """Another plan beside one.

    ratio: its value over the plan's, by the estimates.
    better, worse: shares of the draws in which it is so, by more than TIE.
    lose: by what factor it is worse at worst; 1 where it never is. win: better at best.
    draws: how many.
    """

    ratio: float
    better: float
    worse: float
    lose: float
    win: float
    draws: int


def compare(plan: Plan, other: Plan, draws: Draws) -> Comparison:
    """`other` beside `plan`, both in the unit of the plan."""
    here, there = worth(plan, draws), worth(other, draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(here == there, 1.0, there / here)  # both 0 where neither meets a limit
        loss = np.where(here == there, 1.0, here / there)
    return Comparison(
        ratio=number(other) / number(plan),
        better=float(np.mean(factor > 1 + TIE)),
        worse=float(np.mean(factor < 1 - TIE)),
        lose=max(1.0, float(loss.max())),
        win=max(1.0, float(factor.max())),
        draws=draws.number,
    )


def number(plan: Plan) -> float:
    """Work per second, or per joule of a plan for power efficiency."""
    if plan.objective == "power_efficiency":
        return plan.value
    return plan.rates["env_steps_per_s"] or 1 / plan.period_s


def worth(plan: Plan, draws: Draws) -> Vector:
    """`number` in each draw, shape (draws,). The plan holds its problem."""
    about = plan.problem
    assert about is not None
    timed, orders, held = plan_orders(plan, about.graph, about.costs)
    found = valued(timed, orders, draws, held=held, power_w=about.limits.power_w)
    work = about.graph.env_steps or 1
    return work / (found.energy_j if plan.objective == "power_efficiency" else found.period_s)


def how_sure(c: Comparison) -> str:
    """`better in 71 % of 200 draws; at worst you lose 1.3×`, of the other plan."""
    if c.better == 0 and c.worse == 0:
        return f"equal in all {c.draws} draws"
    text = f"better in {share(c.better, c.draws)}"
    if c.lose > 1 + TIE and c.better > 0:
        text += f"; at worst you lose {times(c.lose)}"
    return text


def share(part: float, draws: int) -> str:
    """`71 % of 200 draws`; never all of them, or none, where it is not so."""
    percents = round(100 * part)
    if 0 < part < 1 and percents in (0, 100):
        return f"{round(part * draws)} of {draws} draws"
    return f"{percents} % of {draws} draws"


@lru_cache(maxsize=256)
def times(factor: float) -> str:
    """`1.3×`; three digits where it is near 1."""
    return (
        f"{factor:.2f}×"
        if factor < 1.1
        else f"{factor:,.1f}×"
        if factor < 100
        else f"{factor:,.0f}×"
    )
